echo 'echo from bash_env' > e; BASH_ENV=./e bash -c 'echo main'
export BASH_ENV=./e; bash -c :
