for i in {1..40}; do sleep 0.0$((i%9+1)) & done; wait; echo $?
