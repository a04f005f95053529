#!/bin/bash
# github.com/containerd/containerd/v2 v2.3.7, pkg/shim (Go): a shim understands the start call of containerd before 2.3,
# and answers it in a form that only containerd 2.3 and newer read.
#
# containerd 2.3 gave the call "start" of a shim a new form: parameters as protobuf on standard input, and protobuf as the
# answer. pkg/shim still takes the earlier form (flags, variables, the options alone on standard input), and its function
# Run still takes a shim.Manager of earlier versions. One would expect that it answers an earlier call in the earlier form:
# JSON with version, address and protocol. It answers in protobuf always, so containerd 2.0 to 2.2 takes the message for
# an address, and cannot connect to it. The same source that every containerd 2.x starts when it is built with v2.2.9 is
# started by no containerd before 2.3 when it is built with v2.3.7.
#
# Output seen (Go 1.26.8, linux/amd64), with %q of the shell for the second:
#   v2.2.9: {"version":3,"address":"unix:///run/example.sock","protocol":"ttrpc"}
#   v2.3.7: $'\b\003\022\030unix:///run/example.sock\032\005ttrpc'
#
# Exits with a status other than 0 if the output differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
export GOFLAGS=-mod=mod CGO_ENABLED=0
answer() { # VERSION
	mkdir "$dir/$1"
	cd "$dir/$1"
	printf 'module example\n\ngo 1.26\n\nrequire github.com/containerd/containerd/v2 %s\n' "$1" >go.mod
	cat >main.go <<'END'
package main

import (
	"context"
	"io"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/shim"
)

type example struct{}

func (example) Name() string { return "example" }

func (example) Start(context.Context, string, shim.StartOpts) (shim.BootstrapParams, error) {
	return shim.BootstrapParams{Version: 3, Address: "unix:///run/example.sock", Protocol: "ttrpc"}, nil
}

func (example) Stop(context.Context, string) (shim.StopStatus, error) { return shim.StopStatus{}, nil }

func (example) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) { return nil, nil }

func main() { shim.Run(context.Background(), example{}) }
END
	go mod tidy >/dev/null 2>&1
	go build -o shim .
	# As containerd 2.2 calls it: the options of the runtime are on standard input, and there are none.
	TTRPC_ADDRESS=/run/none NAMESPACE=test MAX_SHIM_VERSION=3 ./shim -namespace test -address /run/none \
		-publish-binary /bin/true -id one start </dev/null
}
one=$(answer v2.2.9)
echo "v2.2.9: $one"
two=$(answer v2.3.7)
printf 'v2.3.7: %q\n' "$two"
[ "$one" = '{"version":3,"address":"unix:///run/example.sock","protocol":"ttrpc"}' ]
[ "$two" = $'\b\003\022\030unix:///run/example.sock\032\005ttrpc' ]
