s=$(printf '%070000d' 0)
wc -c <<<"$s"; wc -c <<E
$s
E
