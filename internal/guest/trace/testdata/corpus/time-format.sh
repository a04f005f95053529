TIMEFORMAT='%0lR'; time :; time sleep 0.01; time -p : 2>/dev/null; ! time false; echo $?
