command echo a; command -v ls cd nonexistent; builtin echo b; type -t cd if f ls; enable -n echo; type -t echo; echo c
