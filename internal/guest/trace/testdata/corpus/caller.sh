f() { caller; caller 0; caller 1; }
g() {
f
}
g; caller; echo $?
