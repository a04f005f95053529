echo $-; set -f; echo $- *; set +f
