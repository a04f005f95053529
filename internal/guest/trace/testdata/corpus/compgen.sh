compgen -v | grep -c . ; compgen -b | head -3; compgen -A function; compgen -e
