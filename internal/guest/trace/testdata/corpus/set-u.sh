set -u
echo ${x-default}
echo $nope
echo never
