for i in {1..3000}; do echo "line $i of the document"; done > big
cat <<E | md5sum
$(cat big)
E
