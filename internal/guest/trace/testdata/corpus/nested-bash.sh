bash -c 'echo nested $0 $1; exit 4' a b; echo $?
bash <<'E'
echo from stdin
false
E
echo $?
