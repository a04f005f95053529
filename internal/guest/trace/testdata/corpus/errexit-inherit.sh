shopt -s inherit_errexit; set -e; x=$(false; echo no); echo never
