sh -c 'kill -STOP $$; exit 3' & p=$!; sleep 0.1; kill -CONT $p; wait $p; echo $?
