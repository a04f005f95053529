while getopts 'ab:' o -a -b val -z rest; do echo "$o $OPTARG"; done; echo $OPTIND
