LD_PRELOAD=/nonexistent.so ls /dev/null 2>/dev/null; export LD_PRELOAD=; env | grep LD_; unset LD_PRELOAD; env | grep -c LD_
