( kill -9 $BASHPID; echo no ); echo $?
