set -E
trap 'echo "E $LINENO ${FUNCNAME[0]}"' ERR
f() { false; }
f
$(false)
