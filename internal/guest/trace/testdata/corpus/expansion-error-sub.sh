(echo ${x:?in sub}; echo no); echo "rc $?"; f() { echo ${y?}; echo no; }; f; echo never
