set -o history; echo a; history | wc -l; fc -l 2>&1 | head -1; HISTFILE=$PWD/h; history -w; wc -l < h
