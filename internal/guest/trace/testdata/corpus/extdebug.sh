shopt -s extdebug; f() { echo "${BASH_ARGV[@]} ${BASH_ARGC[@]}"; }; f 1 2; declare -F f | sed 's,/.*/,,'
