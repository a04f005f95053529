__turn_exit() {
local -;builtin set +aefuxvTE +o noclobber +o posix
{ builtin pwd;builtin printf '\0';builtin export -p;builtin printf '\0';builtin export -fp;builtin printf '\0';} >|'@RUN@/state'
builtin return "$1";}
builtin trap '{ __turn_exit "$?"; } >/dev/null 2>&1' EXIT
