nonexistent_command arg; echo $?; command_not_found_handle() { echo "handler $1"; return 44; }; nonexistent2; echo $?
