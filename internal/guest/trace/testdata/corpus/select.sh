select x in a b; do echo "got $x"; break; done <<<2
PS3='? '; select y in one; do echo "$y/$REPLY"; done <<<9
