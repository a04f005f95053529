trap 'echo term' TERM
( sleep 0.1; kill -TERM $$ ) & sleep 0.3; wait; echo done
