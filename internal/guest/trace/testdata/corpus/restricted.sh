set -r; cd /; echo $?; echo x > file; echo $?
