a=(1 2 "3 4"); echo "${#a[@]} ${a[2]}"; a+=(5); echo "${a[@]:1:2}" "${!a[@]}"
declare -A h=([x]=1 [y]=2); for k in x y; do echo "$k ${h[$k]}"; done
unset 'a[1]'; declare -p a
