echo 'echo in; x=5; return 3; echo no' > s; . ./s; echo $? $x; source ./s a b; . /nonexistent; echo $?
