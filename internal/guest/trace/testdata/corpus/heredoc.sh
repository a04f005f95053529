x=5
cat <<E
x is $x $(echo sub) \$x
E
cat <<'E'
x is $x $(echo sub)
E
cat <<-E
	tabs
	E
