f() { echo "$FUNCNAME $1 $#"; return 3; }
f a b; echo $?
g() { f x; echo "${FUNCNAME[@]}"; }; g
unset -f f; f 2>/dev/null; echo $?
