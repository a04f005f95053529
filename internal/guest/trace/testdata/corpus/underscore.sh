echo a b; echo $_; : x y; echo $_; true; echo "$_"; ls /dev/null > /dev/null; echo $_
