sh -c 'kill -INT $$' | cat; echo "${PIPESTATUS[0]}"
