echo $BASH_VERSION "${BASH_VERSINFO[0]}" $MACHTYPE; bash --version | head -1
