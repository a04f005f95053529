eval 'eval "eval echo \\\$HOME" > /dev/null'; eval 'f() { echo "def by eval"; }'; f
