(echo a; (echo b; (echo c $BASH_SUBSHELL)))
x=1; (x=2; echo $x); echo $x
