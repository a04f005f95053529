sleep 1 & kill -STOP $!; kill -CONT $!; wait $!; echo $?
