exec {fd}>out; echo $fd; echo x >&$fd; exec {fd}>&-; cat out
exec 3<>rw; echo hello >&3; cat rw
