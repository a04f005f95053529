perl -e 'print "perl $ENV{HOME}\n" =~ /perl/ ? "ok\n" : "no\n"; exit 3'; echo $?; perl -e 'exec "echo", "execd"'
