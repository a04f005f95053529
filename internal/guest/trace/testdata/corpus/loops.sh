for i in a b; do echo $i; done; for ((i=0;i<3;i++)); do echo $i; done
i=0; while ((i<2)); do echo w$i; ((i++)); done; until ((i==0)); do echo u$i; ((i--)); done
