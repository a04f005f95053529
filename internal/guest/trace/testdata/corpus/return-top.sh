return 3; echo "rc $?"
