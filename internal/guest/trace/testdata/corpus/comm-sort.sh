comm -12 <(printf 'a\nb\n') <(printf 'b\nc\n'); paste -d, <(seq 3) <(seq 4 6)
