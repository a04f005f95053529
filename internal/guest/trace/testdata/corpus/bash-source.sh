echo "${BASH_SOURCE[0]##*/} $0" | sed 's,/.*/,,'; echo 'echo "${BASH_SOURCE[0]}"' > s.sh; . ./s.sh
