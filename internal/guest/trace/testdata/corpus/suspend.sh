sleep 0.2 & kill -STOP $!; kill -CONT $!; wait $!; echo $?
