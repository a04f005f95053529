set -o posix; x=1 :; echo "$x"; readonly r=1; r=2; echo never
