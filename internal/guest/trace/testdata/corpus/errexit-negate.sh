set -e; ! true; echo a; if ! false; then echo b; fi; while false; do :; done; false || echo c; x=$(false) || echo d; f() { false; }; f
