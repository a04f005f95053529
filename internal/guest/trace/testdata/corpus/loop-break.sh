for i in 1 2 3; do for j in 1 2; do [[ $i$j == 21 ]] && break 2; echo $i$j; done; done
for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; echo also; done
while :; do break; echo no; done; echo end
