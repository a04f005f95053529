{ sleep 0.05; echo bg; } & wait
sleep 0.02 && echo and & wait
sleep 0.02 | cat & wait; echo $?
for i in 1 2; do echo $i; done & wait
