echo a; kill -TERM $$; echo b
