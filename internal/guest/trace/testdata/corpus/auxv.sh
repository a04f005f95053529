wc -c < /proc/$$/auxv
