(cd /; pwd); pwd | wc -l; cd / && pwd; cd - >/dev/null
