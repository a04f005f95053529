echo a; kill -SEGV $$; echo b
