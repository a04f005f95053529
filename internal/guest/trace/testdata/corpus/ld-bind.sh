LD_BIND_NOW=1 ls /dev/null; LD_LIBRARY_PATH=/nonexistent ls /dev/null; export LD_DEBUG=; ls /dev/null
