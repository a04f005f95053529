cat "$0" | head -2; wc -l < "$0"
