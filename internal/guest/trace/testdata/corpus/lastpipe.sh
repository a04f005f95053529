shopt -s lastpipe; echo a | read x; echo $x; echo b | { read y; echo "in $y"; }; echo $y; true | false; echo $? ${PIPESTATUS[@]}
