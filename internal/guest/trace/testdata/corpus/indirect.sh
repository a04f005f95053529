a=b; b=c; echo ${!a}; declare -n ref=b; ref=z; echo $b; echo ${!b*}
