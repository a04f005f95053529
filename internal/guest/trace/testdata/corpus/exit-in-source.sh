echo 'exit 12' > s; . ./s; echo never
