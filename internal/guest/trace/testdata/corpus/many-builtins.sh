i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; echo $i
