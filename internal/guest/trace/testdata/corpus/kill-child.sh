sleep 60 & kill -9 $!; wait $!; echo $?
