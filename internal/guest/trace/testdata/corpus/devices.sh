echo a > /dev/stdout; echo b > /dev/stderr; cat /dev/stdin <<<c; echo d > /dev/fd/1
