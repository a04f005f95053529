for i in {1..60}; do (exit $((i%3))); done; echo $?
