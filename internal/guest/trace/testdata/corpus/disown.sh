sleep 0.1 & disown; jobs; echo ok
