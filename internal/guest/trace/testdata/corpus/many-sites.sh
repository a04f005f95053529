for i in {1..300}; do eval "echo site$i"; done | md5sum
