echo a
set -n; echo b
