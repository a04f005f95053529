set -x
echo a "b c"
for i in 1 2; do echo $i; done > f; cat f
[[ a == a* ]] && ((1+1))
x=$(echo sub)
f() { echo f; }; f
