set -- -x; getopts :y o; echo "$o $OPTARG"; OPTIND=1; getopts y o; echo $?
