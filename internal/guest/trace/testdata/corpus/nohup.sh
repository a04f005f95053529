nohup echo nohup 2>/dev/null; setsid -w echo setsid; timeout 0.1 sleep 2; echo $?
