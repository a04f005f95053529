echo "$(echo a; echo b)" `echo c`; x=$(exit 3); echo $?; echo $(<step.sh) | wc -w; echo "$(f() { echo q; }; f)"
