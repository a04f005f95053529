trap 'echo "$BASH_COMMAND"' EXIT
echo "$BASH_COMMAND"
