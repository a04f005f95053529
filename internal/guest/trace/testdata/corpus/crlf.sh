printf 'echo crlf\r\n' > c; bash c | od -c | head -3
