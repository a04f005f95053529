(( 1 / 0 )); echo "rc $?"; x=abc; (( x + 1 )); echo $?; echo $(( 08 ))
