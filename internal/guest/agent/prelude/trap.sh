__turn_trap() {
command trap "$@" || return
case ${1-} in --) shift;; esac
[ $# -gt 0 ] || return 0
__turn_user=$1
case $1 in *[!0-9]*|'') [ $# -gt 1 ] && shift;; *) __turn_user=-;; esac
for __turn_a in "$@"; do case $__turn_a in EXIT|exit|0)
case $__turn_user in -|''|EXIT|exit) command trap "$__turn_own" EXIT;;
*) command trap "$__turn_own && { :; } 2>/dev/null; $__turn_user" EXIT;; esac;; esac; done
return 0
}
alias trap=__turn_trap
