set -T
trap 'echo "D $BASH_COMMAND" >&2' DEBUG
f() { echo a; (echo b); }
f
