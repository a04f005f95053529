mkdir -p d/{a,b}; for i in 1 2 3; do echo $i > d/a/$i; done; cp -r d/a d/b; chmod 600 d/a/1; ln -s ../a d/b/link; find d | sort
