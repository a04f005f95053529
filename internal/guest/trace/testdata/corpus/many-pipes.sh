echo start | cat | cat | cat | cat | cat | cat | cat | cat | cat | tr a-z A-Z
