trap 'trap "echo second" EXIT; echo first; exit 3' EXIT
exit 1
