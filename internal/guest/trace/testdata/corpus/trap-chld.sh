set -m; trap 'echo chld' CHLD; true & wait $!; trap - CHLD; echo end
