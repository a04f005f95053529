{ echo a; echo b; } | cat; { echo c; } > f; cat f; { { { echo d; }; }; }; { exit 3; }; echo never
