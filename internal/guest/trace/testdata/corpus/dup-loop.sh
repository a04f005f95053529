exec 3< "$0"; read l <&3; echo "$l"; while read -u 3 l; do echo "+$l"; done; exec 3<&-
