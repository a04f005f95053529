echo $SHLVL; bash -c 'echo $SHLVL'; (echo $SHLVL); exec bash -c 'echo $SHLVL'
