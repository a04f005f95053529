#!/bin/bash
# github.com/containerd/containerd/v2 v2.4.2, core/runtime/v2 (Go): what a shim writes to standard error when it is started
# becomes part of the address at which containerd looks for it.
#
# A shim answers the call "start" on standard output. One would expect that a warning on standard error, of the shim or of a
# library in it, goes to containerd's log, as that of the call "delete" does (it has a buffer of its own there). Of "start"
# containerd reads both streams as one answer, so a shim that serves at the address that it has named is not found: the
# warning is in front of the address. No log has the warning, and the error quotes it as a socket.
#
# Output seen (Go 1.26.8, linux/amd64): the same shim, silent and with a warning
#   silent: started
#   warning: not started; the address begins with "a warning"
#
# Exits with a status other than 0 if the output differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
export GOFLAGS=-mod=mod CGO_ENABLED=0
cd "$dir"
cat >containerd-shim-example-v1 <<END
#!/bin/sh
for last; do :; done
[ "\$last" = start ] || exit 0
[ -z "\${WARNING:-}" ] || echo "\$WARNING" >&2
printf '{"version":3,"address":"unix://$dir/shim.sock","protocol":"ttrpc"}'
END
chmod +x containerd-shim-example-v1
printf 'module example\n\ngo 1.26\n\nrequire github.com/containerd/containerd/v2 v2.4.2\n' >go.mod
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/runtime"
	v2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	dir := os.Args[1]
	log.L.Logger.SetOutput(io.Discard)
	l, err := net.Listen("unix", filepath.Join(dir, "shim.sock"))
	must(err)
	defer l.Close()
	ctx := namespaces.WithNamespace(context.Background(), "test")
	for _, name := range []string{"silent", "warning"} {
		env := []string{}
		if name == "warning" {
			env = append(env, "WARNING=a warning")
		}
		m, err := v2.NewShimManager(&v2.ManagerConfig{Address: filepath.Join(dir, "none.sock"), SocketDir: dir, ShimEnv: env})
		must(err)
		b, err := v2.NewBundle(ctx, filepath.Join(dir, "root"), filepath.Join(dir, "state"), name, nil)
		must(err)
		_, err = m.Start(ctx, name, b, runtime.CreateOpts{Runtime: filepath.Join(dir, "containerd-shim-example-v1")})
		switch {
		case err == nil:
			fmt.Println(name + ": started")
		case strings.Contains(err.Error(), "a warning"):
			fmt.Println(name + `: not started; the address begins with "a warning"`)
		default:
			fmt.Println(name+": not started:", err)
		}
	}
}
END
go mod tidy >/dev/null 2>&1
out=$(go run . "$dir" 2>&1)
echo "$out"
[ "$out" = 'silent: started
warning: not started; the address begins with "a warning"' ]
