eval 'if then'; echo "rc $?"; eval 'echo ok'
