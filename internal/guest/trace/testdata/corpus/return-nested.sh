f() { for i in 1 2 3; do while :; do if true; then return $i; fi; done; done; }; f; echo $?; f() { return; }; false; f; echo $?
