printf '%d' 1x 2>&1; echo " $?"; printf; echo $?; printf '%z' 2>&1; echo $?
