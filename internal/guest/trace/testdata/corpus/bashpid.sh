[[ $$ == $BASHPID ]] && echo same; ( [[ $$ != $BASHPID ]] && echo differs ); echo $BASH_SUBSHELL $SHLVL $PPID | wc -w
