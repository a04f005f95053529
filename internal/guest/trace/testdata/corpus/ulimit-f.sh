ulimit -f 1; trap '' XFSZ; head -c 4096 /dev/zero > big; echo $?
