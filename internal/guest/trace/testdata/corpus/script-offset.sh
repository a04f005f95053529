while read -r line; do echo "> $line"; done
data here
more data
