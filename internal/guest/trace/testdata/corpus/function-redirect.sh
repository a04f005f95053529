f() { cat; echo err >&2; } <<<"in function" 2>&1
f; f > out; cat out
