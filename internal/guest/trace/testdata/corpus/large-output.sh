for i in {1..2000}; do echo "line $i with some text that makes it longer"; done; seq 1 20000 | md5sum
