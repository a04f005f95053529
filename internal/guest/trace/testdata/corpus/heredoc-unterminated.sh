cat <<E
never ends
