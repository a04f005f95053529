complete -W 'a b' cmd; complete -p; compopt 2>/dev/null; echo $?; bind -l 2>/dev/null | head -1
