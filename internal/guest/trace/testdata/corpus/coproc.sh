coproc { read x; echo "got $x"; }
echo hi >&"${COPROC[1]}"; read y <&"${COPROC[0]}"; echo $y; wait $COPROC_PID; echo $?
