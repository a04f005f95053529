exit() { builtin echo "my exit $1"; builtin exit 5; }
echo() { builtin echo "my $*"; }
cd() { builtin echo "my cd"; }
echo a; cd /; exit 2
