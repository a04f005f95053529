while true; do for i in 1 2; do if true; then exit 8; fi; done; done
