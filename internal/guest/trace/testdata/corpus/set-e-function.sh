set -e
f() { false; echo in; }
f
echo out
