((x=5)); echo $((x*2)) $?; ((0)); echo $?; let y=3+4; echo $y; echo $((1/0)); echo never
