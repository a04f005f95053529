mkdir a; cd a; pwd | sed 's,.*/,,'; cd ..; cd nonexistent; echo $?; CDPATH=.; cd a | sed 's,.*/,,'; ln -s a l; cd l; pwd | sed 's,.*/,,'; pwd -P | sed 's,.*/,,'
