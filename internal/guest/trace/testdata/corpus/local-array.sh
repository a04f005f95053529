f() { local -a a=(1 2); local -A h=([k]=v); echo ${a[1]} ${h[k]}; }; f; echo ${a[1]:-none}
