sh -c 'sleep 0.05; exit 3' & sh -c 'sleep 1; exit 4' &
wait -n; echo $?; wait -n; echo $?; wait -n; echo $?
