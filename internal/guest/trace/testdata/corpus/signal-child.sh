sh -c 'kill -TERM $$'; echo $?; sh -c 'kill -ABRT $$' 2>/dev/null; echo $?
