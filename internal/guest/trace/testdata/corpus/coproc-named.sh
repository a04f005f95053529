coproc CAT { cat; }
echo a >&"${CAT[1]}"; read l <&"${CAT[0]}"; echo "$l"; exec {CAT[1]}>&-; wait; echo end
