export FOO=bar; env -0 | tr '\0' '\n' | sort
