echo ${x!}; echo "rc $?"
