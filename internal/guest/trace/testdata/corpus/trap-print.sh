trap 'echo a "b"' EXIT; trap 'x' INT; trap '' TERM; trap -p; trap; trap - EXIT INT
