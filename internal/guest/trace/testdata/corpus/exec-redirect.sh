exec >out 2>&1
echo to file; ls /nonexistent
exec 1>/dev/null
cat out >&2
