[[ abc =~ ^a(.)c$ ]] && echo ${BASH_REMATCH[1]}; [[ -f /etc/passwd && ! -d /nonexistent ]]; echo $?; [[ 1 -lt 2 || x ]] && echo t; [ a = b ]; echo $?
