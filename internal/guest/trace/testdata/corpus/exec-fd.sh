exec 3>out 4<&0
echo x >&3; exec 3>&-; cat out
echo y >&3
echo "rc $?"
exec 4<&-
