set -n
echo not run
