SECONDS=10; ((SECONDS >= 10)) && echo ok; [[ $EPOCHSECONDS -gt 0 ]] && echo epoch
