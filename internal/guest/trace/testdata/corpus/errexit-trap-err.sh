set -eE; trap 'echo "err at $LINENO"' ERR; trap 'echo bye' EXIT; f() { ls /nonexistent 2>/dev/null; }; f; echo never
