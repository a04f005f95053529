trap 'echo "E:$?:$BASH_COMMAND:$LINENO"' ERR
false
(exit 4)
true | false
false || true
ls /nonexistent 2>/dev/null
