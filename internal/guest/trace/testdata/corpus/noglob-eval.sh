set -f; x='*'; echo $x; eval 'echo $x'; set -- *; echo $1
