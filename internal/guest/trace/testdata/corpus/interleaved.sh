for i in {1..50}; do echo o$i; echo e$i >&2; done
