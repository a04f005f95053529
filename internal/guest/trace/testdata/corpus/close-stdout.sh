exec 1>&-; echo a; echo "rc $?" >&2; ls; echo "rc $?" >&2
