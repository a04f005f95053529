TIMEFORMAT=%R; x=$( { time sleep 0.1; } 2>&1 ); [[ $x == 0.1* ]] && echo near
