sleep 1 >/dev/null 2>&1 & disown; jobs; echo ok
