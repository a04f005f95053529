f() { :; }; g() { :; }; declare -F; declare -f f; typeset -f g
