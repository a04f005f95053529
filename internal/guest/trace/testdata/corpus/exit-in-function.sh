f() { g; echo no; }; g() { exit 6; }; f; echo never
