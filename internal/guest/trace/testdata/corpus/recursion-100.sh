f() { (( $1 == 0 )) && { echo bottom ${#FUNCNAME[@]}; return; }; f $(( $1 - 1 )); }; f 100
