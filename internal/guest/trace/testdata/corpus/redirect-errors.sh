echo x > /nonexistent/file; echo $?; cat < /nonexistent; echo $?; { echo y; } > /nonexistent/z; echo $?; set -C; echo a > f; echo b > f; echo $?; echo c >| f; cat f
