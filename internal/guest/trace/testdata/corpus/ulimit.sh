ulimit -n 16; for i in 1 2 3; do echo $i | cat; done; cat <<<x; ulimit -n
