trap 'echo main' EXIT
( trap 'echo sub' EXIT; echo in )
( echo none )
