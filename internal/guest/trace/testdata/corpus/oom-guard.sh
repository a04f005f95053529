x=$(head -c 5000000 /dev/zero | tr '\0' a); echo ${#x}
