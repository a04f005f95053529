FUNCNEST=20; f() { f; }; f; echo "rc $?"
