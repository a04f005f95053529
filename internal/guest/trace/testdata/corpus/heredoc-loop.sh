while read -r l; do echo "[$l]"; done <<E
1
2
E
