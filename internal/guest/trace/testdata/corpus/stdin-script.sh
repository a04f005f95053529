echo 'echo from stdin; read x; echo "[$x]"
next line' | bash
