printf 'a 1\nb 2\n' | awk '{s+=$2} END {print s}'; echo abc | sed -e 's/b/[&]/' -e 's/c/C/'
