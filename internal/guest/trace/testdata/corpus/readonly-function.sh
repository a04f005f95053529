readonly BASHOPTS2=1; f() { r=1; local r2; readonly r; r=3; echo no; }; f; echo "rc $?"
