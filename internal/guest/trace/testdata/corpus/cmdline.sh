tr '\0' ' ' < /proc/$$/cmdline | sed 's,/[^ ]*/,,g'
