hash ls; hash -t ls; hash -p /bin/cat foo; echo viahash | foo; hash -d foo; foo; echo $?
