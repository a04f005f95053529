exec 0<&-; read x; echo $?; cat; echo $?
