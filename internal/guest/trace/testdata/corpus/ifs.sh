IFS=,; x=a,b,c; set -- $x; echo $# $2; IFS=; y='a b'; set -- $y; echo $#; unset IFS; set -- $y; echo $#
