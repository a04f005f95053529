LC_ALL=xx_XX; echo a; LC_ALL=C.UTF-8 bash -c 'echo ${#1}' _ ö
