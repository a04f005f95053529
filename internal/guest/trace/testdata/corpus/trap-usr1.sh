trap 'echo usr1' USR1
kill -USR1 $$; echo a
sleep 0.05 & kill -USR1 $$; wait; echo b
