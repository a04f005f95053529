if false; then echo a; elif true; then echo b; else echo c; fi; if [ 1 = 2 ]; then :; fi; echo $?
