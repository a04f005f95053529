for i in {1..120}; do /bin/true; done; echo $?
