shopt -s compat44; BASH_COMPAT=4.3; echo $BASH_COMPAT; [[ a < b ]] && echo lt
