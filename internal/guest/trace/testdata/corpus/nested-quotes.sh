echo "$(echo "$(echo "a b" | sed "s/a/'x'/")")" "${x:-"${y:-"deep"}"}"
