echo "[$!]"; : & wait; [[ -n $! ]] && echo set
