set -o posix
f() { echo f; }; f; export X=1; echo ${X}; shopt -o posix
. ./nonexistent; echo never
