grep -E '^(Sig(Blk|Ign|Cgt)|Threads|NoNewPrivs|Seccomp|FDSize)' /proc/$$/status; grep -E '^Sig(Blk|Ign)' /proc/self/status
