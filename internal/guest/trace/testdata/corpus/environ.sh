tr '\0' '\n' < /proc/$$/environ
