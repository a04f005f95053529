x=1; declare -i n=3; declare -r ro=4; export e=5; declare -p x n ro e; declare -a arr=(a b); declare -p arr
