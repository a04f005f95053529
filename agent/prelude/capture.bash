__turn_exit() {
local -;builtin set +aefuxvTE +o noclobber
local __turn_s=$1 __turn_n __turn_l
builtin compgen -e >|'@RUN@/names';builtin mapfile -t __turn_l <'@RUN@/names'
{ builtin pwd;builtin printf '\0'
for __turn_n in "${__turn_l[@]}";do
if [[ ${!__turn_n@a} != *[aA]* && -n ${!__turn_n+x} ]];then builtin printf '%s=%s\0' "$__turn_n" "${!__turn_n}";fi
done
builtin printf '\0';builtin export -fp;builtin printf '\0';} >|'@RUN@/state'
builtin return "$__turn_s";}
builtin trap '{ __turn_exit "$?"; } >/dev/null 2>&1' EXIT
