cleanup() { echo cleaning; [ -n "$1" ] && echo "$1"; }
trap 'echo trapped; cleanup x' EXIT
echo trapped
