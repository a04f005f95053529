enable -f /nonexistent x; echo $?; enable -a | head -2; enable -s | wc -l
