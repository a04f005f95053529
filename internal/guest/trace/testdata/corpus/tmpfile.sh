t=$(mktemp); echo a > $t; cat $t; rm $t; [[ -e $t ]] || echo removed
