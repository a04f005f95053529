shopt -s nullglob extglob globstar; echo *.none; mkdir -p d/e; touch d/e/f; echo **; [[ ab == @(a|ab) ]] && echo ext
