PATH=/nonexistent; ls; echo $?; /bin/echo abs; PATH=/bin; hash; hash -r; type ls
