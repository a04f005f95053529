trap 'echo got' USR1; sh -c 'sleep 0.05; kill -USR1 $PPID; sleep 0.05; exit 4' & wait $!; echo $(( $? > 128 )); wait $!; echo $?
