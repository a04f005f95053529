x=$(printf '%0100000d' 0); echo ${#x}; echo $x | wc -c; : $x $x; true "$x"
