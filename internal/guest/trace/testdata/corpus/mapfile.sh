mapfile -t a < <(printf '1\n2\n3\n'); echo ${#a[@]} ${a[1]}
readarray -n 1 b < <(echo x; echo y); echo "${b[@]}"
mapfile -C 'echo cb' -c 1 c <<<$'p\nq'
