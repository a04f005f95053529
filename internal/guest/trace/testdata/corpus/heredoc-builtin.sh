read a b <<E
one two three
E
echo "$a-$b"
mapfile -t m <<'E'
x
y $z
E
echo "${m[@]}"
