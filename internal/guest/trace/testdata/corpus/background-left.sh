sleep 0.3 > /dev/null 2>&1 & echo left
