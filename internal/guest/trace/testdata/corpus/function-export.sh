f() { echo "exported $1"; }; export -f f; bash -c 'f x'; env | grep -c BASH_FUNC; unset -f f; bash -c 'f x' 2>/dev/null; echo $?
