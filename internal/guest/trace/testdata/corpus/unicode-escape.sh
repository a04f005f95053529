echo $'\u00e9' | od -An -tx1; printf '\u2603\n' | od -An -tx1
