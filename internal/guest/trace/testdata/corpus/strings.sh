s=hello; echo ${s^} ${s^^} ${s:1:3} ${#s} ${s/l/L} ${s//l/L} ${s#he} ${s%lo} ${s@Q} ${s: -2}
