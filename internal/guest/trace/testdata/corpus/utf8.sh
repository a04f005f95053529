x='héllo wörld ☃'; echo $x ${#x}; LC_ALL=C.UTF-8; echo ${#x}; echo ☃ | od -c | head -2
