bash -i -c 'echo inter' 2>/dev/null </dev/null; echo $?
