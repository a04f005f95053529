echo a 2>/dev/null >&3 || echo "3 is closed"
echo a 2>/dev/null >&4 || echo "4 is closed"
read x <&3 || echo none
