f() { local x=1; g; }; g() { echo "x=$x"; x=2; }; x=0; f; echo $x; f2() { local -; set -e; }; f2; false; echo ok
