set -m
sleep 0.1 & fg %1
(exit 3) & wait $!; echo $?
