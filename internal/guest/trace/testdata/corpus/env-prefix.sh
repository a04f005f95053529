X=1 env | grep ^X=; X=2 eval 'echo $X'; X=3; X=4 true; echo $X; f() { echo $X; }; X=5 f
