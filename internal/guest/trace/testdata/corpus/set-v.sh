set -v
echo a # comment
for i in 1 2; do
 echo $i
done
