TIMEFORMAT=done; time echo a | cat; time (echo b); time for i in 1; do echo $i; done
