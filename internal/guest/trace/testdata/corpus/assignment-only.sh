x=1 y=$(exit 3); echo $? $x; a[3]=q; echo ${a[3]}; x+=2; echo $x; declare z=$(false); echo $?
