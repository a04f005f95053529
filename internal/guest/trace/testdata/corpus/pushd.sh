mkdir p; pushd p > /dev/null; dirs | wc -w; popd >/dev/null; popd; echo $?
