f() { echo a
echo b
