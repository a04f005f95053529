printf '\0\1\377\n'; head -c 300 /dev/zero | tr '\0' '\200'; echo -e '\x00\xff'
