sleep 0.2 & jobs; jobs -p | wc -l; kill %1; wait %1; echo $?
