echo "a'b" 'c"d' $'e\tf' a\ b "$(echo "x \"y\"")" \\
