shopt -s extdebug
trap '[[ $BASH_COMMAND != "echo skip" ]]' DEBUG
echo one
echo skip
echo two
