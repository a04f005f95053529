set -e; false | true; echo a; true | false; echo never
