cat <<<plain; cat <<<"a  b"; cat <<<'$x'; read v <<<"$HOME"; [[ $v == $HOME ]] && echo ok
tr a b <<<$(echo aaa)
