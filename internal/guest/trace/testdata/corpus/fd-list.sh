ls /proc/self/fd; for f in /proc/$$/fd/*; do echo ${f##*/}; done
