printf 'no newline at end'
