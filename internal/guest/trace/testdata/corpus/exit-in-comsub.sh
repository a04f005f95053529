x=$(exit 5; echo no); echo $? "[$x]"
