while read l; do echo "$l"; done < <(printf 'x\ny\n'); echo ${x:-unset}
