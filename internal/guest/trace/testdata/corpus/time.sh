time true
time { true | cat; }
