touch noexec; ./noexec; echo $?; ./; echo $?; mkdir dd; ./dd; echo $?
