f() { local -n r=$1; r+=(x); }; a=(1); f a; echo ${a[@]}
