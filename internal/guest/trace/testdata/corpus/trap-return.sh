trap 'echo R' RETURN
f() { echo f; trap 'echo Rf' RETURN; return 2; }
f; echo $?
echo 'echo sourced' > s; . ./s
