f() { if (( $1 > 0 )); then f $(( $1 - 1 )); else echo bottom; fi; }; f 1000
