echo 'a:b' | { IFS=: read x y; echo "$x $y"; }
read -t 0.05 x < <(sleep 0.3); echo $(( $? > 128 ))
read -n 2 z <<<abcdef; echo $z; read -d , q <<<'p,q'; echo $q; read -a arr <<<'1 2 3'; echo ${arr[2]}
