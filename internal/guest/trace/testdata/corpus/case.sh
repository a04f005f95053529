for x in a ab b '*'; do case $x in a) echo A;; a*) echo AS;& b) echo B;;& '*') echo star;; *) echo D;; esac; done
