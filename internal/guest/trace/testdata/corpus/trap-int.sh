trap 'echo int' INT; kill -INT $$; echo after
trap - INT; trap '' INT; kill -INT $$; echo still
