ls /nonexistent /dev/null &> out; sort out; ls /nonexistent &>> out; wc -l < out; ls /nonexistent |& cat
