printf -v x '%05d' 42; echo $x; printf '%s\n' a b; printf '%q\n' 'a b' $'\n'; printf '%b' 'a\tb\n'
printf '%(%Y)T\n' 0; printf '%d\n' abc; echo $?
