head -c 3000000 /dev/zero | tr '\0' 'x'; echo; seq 1 200000 | tail -1
