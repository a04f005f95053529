shopt -s execfail
exec /nonexistent/program; echo "rc $?"
