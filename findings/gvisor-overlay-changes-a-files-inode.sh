#!/bin/bash
# gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237, runsc with its default overlay of the root (--overlay2=root:self,
# also memory): a file of the image gets another device and inode number when it is opened for writing.
#
# Linux's overlay keeps both when it copies a file up, if the layers are on one file system (inode numbers of overlayfs.rst
# are constant since 4.12). Programs rely on it: they look at a file by lstat(2), open it, and compare fstat(2) with what
# they saw, so that nobody exchanges the file in between. In a container of runsc the comparison fails, once, for each file
# of the image, although nobody has touched it; from then on it holds.
#
# Output seen (Go 1.26.8, linux/amd64): lstat, open for reading and writing, fstat; twice
#   linux: same, same
#   runsc: another file, same
#
# Exits with a status other than 0 if the output differs. It needs root.
set -euo pipefail
dir=$(mktemp -d)
trap 'umount "$dir/state/null-netns" 2>/dev/null || true; chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
export GOFLAGS=-mod=mod CGO_ENABLED=0
cd "$dir"
mkdir build program root root/proc root/etc
printf 'module build\n\ngo 1.26\n\nrequire gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237\n' >build/go.mod
(cd build && go build -ldflags='-s -w' -o ../runsc gvisor.dev/gvisor/runsc 2>log || { cat log; exit 1; })
printf 'module program\n\ngo 1.26\n' >program/go.mod
cat >program/main.go <<'END'
package main

import (
	"fmt"
	"os"
)

func main() {
	for n := range 2 {
		was, err := os.Lstat("/etc/settings")
		if err != nil {
			panic(err)
		}
		f, err := os.OpenFile("/etc/settings", os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		is, err := f.Stat()
		if err != nil {
			panic(err)
		}
		if n > 0 {
			fmt.Print(", ")
		}
		if os.SameFile(was, is) {
			fmt.Print("same")
		} else {
			fmt.Print("another file")
		}
		f.Close()
	}
	fmt.Println()
}
END
(cd program && go build -o ../root/compare .)
echo text >root/etc/settings
mkdir upper work merged
linux=$(unshare --mount sh -c 'mount -t overlay overlay -o lowerdir=root,upperdir=upper,workdir=work merged && chroot merged /compare')
cat >config.json <<'END'
{"ociVersion": "1.0.2", "process": {"args": ["/compare"], "cwd": "/", "env": []}, "root": {"path": "root"},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}]}}
END
gvisor=$(./runsc --root="$dir/state" --network=none --ignore-cgroups run --bundle="$dir" compare 2>log || { cat log; exit 1; })
printf 'linux: %s\nrunsc: %s\n' "$linux" "$gvisor" | tee seen
diff seen - <<'END'
linux: same, same
runsc: another file, same
END
