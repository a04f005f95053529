touch .h v; echo *; shopt -s dotglob; echo *; GLOBIGNORE=v; echo *
