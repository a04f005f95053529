bash -l -c 'echo login $0' < /dev/null; shopt login_shell
