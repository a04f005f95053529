yes | head -1; echo "${PIPESTATUS[@]}"; trap '' PIPE; yes 2>/dev/null | head -1; echo "${PIPESTATUS[0]}"
