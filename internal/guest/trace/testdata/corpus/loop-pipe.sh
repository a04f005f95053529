for i in 3 1 2; do echo $i; done | sort | while read x; do echo "<$x>"; done
seq 5 | { read a; echo $a; cat; }
