(exit); echo $?; (exit 256); echo $?; (exit -1); echo $?; (exit abc); echo $?; false; exit
