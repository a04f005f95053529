trap 'wait; echo trapped' EXIT; (sleep 0.05; echo bg) &
exit 3
