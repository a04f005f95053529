__turn_exit() { { pwd;printf '\0';command -p env -0; } >|'@RUN@/state';return "$1"; }
__turn_own='{ __turn_exit "$?"; } >/dev/null 2>&1'
trap "$__turn_own" EXIT
