echo <(:) | sed 's/[0-9]*$/N/'; f() { cat "$1"; }; f <(echo fn)
