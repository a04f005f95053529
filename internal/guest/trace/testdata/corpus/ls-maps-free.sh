wc -c < /proc/$$/stat > /dev/null; cat /proc/$$/comm; grep -c . /proc/$$/limits
