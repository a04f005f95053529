env | sort | grep -v '^_='
