sh -c 'exit 5' & wait -n -p who; [[ $who == $! ]] && echo same $?
