echo before; exec echo replaced by "$0"
echo never
