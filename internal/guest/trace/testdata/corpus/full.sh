echo x > /dev/full; echo $?; printf 'y' > /dev/full; echo $?; cat <<<a > /dev/full; echo $?
