mkdir -p t/u; touch t/a t/u/b; find t -type f | sort | xargs -n1 echo F; find t -name b -exec echo {} \;
