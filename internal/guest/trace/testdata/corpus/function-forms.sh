function a { echo a; }
b() ( echo b; exit 4 )
c() for i in 1 2; do echo $i; done
d() if true; then echo d; fi
e() [[ $1 == x ]]
g() (( $1 > 2 ))
a; b; echo $?; c; d; e x; echo $?; g 3; echo $?
