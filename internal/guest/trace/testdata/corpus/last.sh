echo "the end"; false
