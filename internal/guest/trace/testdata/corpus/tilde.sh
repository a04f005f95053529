HOME=/h; echo ~ ~/x "~" ~root; x=~:~; echo $x
