set -e
(false; echo no)
echo never
