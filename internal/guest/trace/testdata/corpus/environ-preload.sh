echo "[${LD_PRELOAD-unset}]"; env | grep -c LD_; sh -c 'echo "[${LD_PRELOAD-unset}]"'; printenv LD_PRELOAD; echo $?
