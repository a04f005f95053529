set -o functrace; f() { g; }; g() { trap 'echo "$BASH_COMMAND in $FUNCNAME"' DEBUG; :; }; f
