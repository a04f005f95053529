trap 'exit 9' EXIT
exit 2
