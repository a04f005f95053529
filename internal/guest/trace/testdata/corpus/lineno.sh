echo $LINENO

echo $LINENO; f() {
echo $LINENO
}
f; eval 'echo $LINENO'
echo "$(echo $LINENO)"
