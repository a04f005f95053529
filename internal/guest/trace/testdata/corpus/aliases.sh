shopt -s expand_aliases
alias ll='echo aliased'
ll x
alias two='echo 1; echo 2'
two
unalias ll
alias
