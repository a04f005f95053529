enable -n cd pwd export; pwd; export x=1; echo $?
