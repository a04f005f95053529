[[ a =~ ( ]]; echo $?; [ 1 -eq x ]; echo $?; test a b c d e; echo $?
