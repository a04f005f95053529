set -- a 'b c'; for x; do echo "<$x>"; done; echo "$#" "$*"; shift; echo $1; shift 5; echo $?
