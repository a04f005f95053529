(exit 3) | (exit 4) | true; echo "${PIPESTATUS[@]}"
sh -c 'kill -9 $$' | true; echo "${PIPESTATUS[@]}"
