echo a; exit 7; echo b
