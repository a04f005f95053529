echo a | exit 3; echo $?; exit 4 | true; echo $?
