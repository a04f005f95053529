echo 'echo in $0; exit 4' > s; chmod +x s
(exec ./s) | sed 's,/.*/,,'; ./s | cat
exec ./s
