( set -u; echo $nope; echo never ); echo "rc $?"
