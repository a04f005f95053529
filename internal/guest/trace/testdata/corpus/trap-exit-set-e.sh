trap 'echo "trap $? $LINENO"' EXIT
set -e
echo x
false
echo y
