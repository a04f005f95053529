ulimit -s 1024; ulimit -c 0
f() { f; }
echo start
(f) 2>/dev/null; echo $?
f
