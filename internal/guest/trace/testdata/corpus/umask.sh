umask; umask 077; touch f; stat -c %a f; umask -S
