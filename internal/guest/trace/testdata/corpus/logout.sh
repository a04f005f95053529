logout; echo $?; suspend 2>/dev/null; echo $?
