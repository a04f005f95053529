ulimit -n 6; cat <<E
text $HOME
E
echo $?
