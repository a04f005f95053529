for i in 1 2; do echo $i; done > out; cat out; while read l; do echo "r $l"; done < out; if true; then echo c; fi >> out; cat out
