__turn_own='{ __turn_exit "$?"; } >/dev/null 2>&1' __turn_user=-
trap() {
{ local -;builtin set +aefuxvTE +o noclobber;} 2>/dev/null
local __turn_q="'" __turn_f='@RUN@/traps' __turn_a __turn_l __turn_v=("$@") __turn_hit=
case ${1-} in
-l*)builtin trap "$@";return;;
--)__turn_v=("${@:2}");;
esac
if [[ ${#__turn_v[@]} -eq 0 || ${1-} == -[pP]* ]];then
if [[ $BASH_SUBSHELL -gt 0 ]];then __turn_f+=.$BASHPID;fi
builtin trap "$@" >|"$__turn_f"||return
builtin mapfile __turn_l <"$__turn_f"
builtin printf -v __turn_l %s "${__turn_l[@]}"
__turn_a="trap -- $__turn_q${__turn_own//$__turn_q/$__turn_q\\$__turn_q$__turn_q}$__turn_q EXIT"$'\n'
__turn_f=
if [[ $__turn_user != - ]];then
__turn_f="trap -- $__turn_q${__turn_user//$__turn_q/$__turn_q\\$__turn_q$__turn_q}$__turn_q EXIT"$'\n'
fi
builtin printf %s "${__turn_l/"$__turn_a"/"$__turn_f"}"
return 0
fi
builtin trap "$@"||return
__turn_a=${__turn_v[0]}
if [[ ${#__turn_v[@]} -eq 1 || ( -n $__turn_a && -z ${__turn_a//[0-9]/} ) ]];then __turn_a=-
else __turn_v=("${__turn_v[@]:1}");fi
for __turn_l in "${__turn_v[@]}";do
case $__turn_l in [eE][xX][iI][tT]|[sS][iI][gG][eE][xX][iI][tT]|0)__turn_hit=1;;esac
done
if [[ -z $__turn_hit || $BASH_SUBSHELL -gt 0 ]];then return 0;fi
__turn_user=$__turn_a
case $__turn_user in
-|'')__turn_own='{ __turn_exit "$?"; } >/dev/null 2>&1';;
*)__turn_own='{ __turn_exit "$?"; } >/dev/null 2>&1 && { :; } 2>/dev/null; '$__turn_user;;
esac
builtin trap -- "$__turn_own" EXIT
}
