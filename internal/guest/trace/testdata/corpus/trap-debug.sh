trap 'echo "D:$BASH_COMMAND:$LINENO"' DEBUG
x=1
echo $x | cat
for i in 1 2; do :; done
f() { echo f; }
f
