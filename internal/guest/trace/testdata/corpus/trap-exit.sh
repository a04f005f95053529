trap 'echo exit $?' EXIT
echo a; (exit 3)
