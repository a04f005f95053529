set -e; { false; echo a; } || echo b; (set +e; false; echo c); { true; false; }; echo never
