printf '#!/bin/bash\necho inner $1; exit 3\n' > s; chmod +x s; ./s arg; echo $?
printf 'echo noshebang\n' > n; chmod +x n; ./n
