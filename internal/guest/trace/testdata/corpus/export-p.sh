export -p; readonly -p | head -2
