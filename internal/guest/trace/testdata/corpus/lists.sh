true && echo a || echo b; false && echo c || echo d; true || echo e && echo f; { echo g; false; } && echo h; echo $?
