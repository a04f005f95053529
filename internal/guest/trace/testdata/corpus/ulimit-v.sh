ulimit -v 200000; echo $(echo in); (echo sub); ls /dev/null
