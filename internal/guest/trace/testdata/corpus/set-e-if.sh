set -e
f() { false; echo still; }
if f; then echo yes; fi
f || echo no
echo end
