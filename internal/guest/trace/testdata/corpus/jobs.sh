sleep 60 & jobs; jobs -p | wc -l; kill %1; wait %1; echo $?
