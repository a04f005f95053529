{ echo o; echo e >&2; } 2>&1 > f; cat f
echo dup 1>&2 2>/dev/null
