exec /nonexistent/program
echo never
