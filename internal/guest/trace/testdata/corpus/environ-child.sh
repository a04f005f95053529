sh -c 'tr "\0" "\n" < /proc/$$/environ | sort'
