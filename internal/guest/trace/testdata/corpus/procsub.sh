cat <(echo a) <(echo b); diff <(echo a) <(echo b); echo $?
tee >(cat > copy) <<<data >/dev/null; sleep 0.1; cat copy
