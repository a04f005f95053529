eval 'for i in 1 2; do echo $i; done'; eval "echo a" "b"; eval exit 3
