PS4='+${LINENO}: '; set -x; echo a; (echo b); { set +x; } 2>/dev/null; echo quiet
