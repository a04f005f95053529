read -t 0 < /dev/null; echo $?; echo x | { sleep 0.05; read -t 0 && echo ready; }
