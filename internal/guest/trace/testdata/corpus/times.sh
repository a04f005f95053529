times | wc -l; times > /dev/null; echo $?
