echo 'echo $1 $2' | bash -s a b; bash --norc -c 'echo n'; bash --badoption; echo $?
