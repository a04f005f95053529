#!/bin/bash
# connectrpc.com/connect v1.21.1 (Go): to a client, a server that went away has canceled the call.
#
# A server answers a unary call, and its connection is reset: before the answer, or in the middle of it. The client's
# context is not canceled and has no deadline. One would expect "unavailable", the code that connect gives if the
# connection is refused, and that retry policies repeat. Seen is "canceled": the rule that recognizes a handler's write
# to a client that has gone (ECONNRESET, EPIPE) is applied to the client's reads, too. If the same connection ends
# with FIN in the middle of the answer, the code is "unknown", so the code depends on the kernel's way to end it.
#
# Output seen (Go 1.26.8, linux/amd64):
#   reset before the answer: canceled, context error <nil>
#   reset in the answer: canceled, context error <nil>
#   closed in the answer: unknown, context error <nil>
#   nobody listens: unavailable, context error <nil>
#
# Exits with a status other than 0 if the output differs.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS=-mod=mod
cat >go.mod <<'EOF'
module reset

go 1.26

require (
	connectrpc.com/connect v1.21.1
	google.golang.org/protobuf v1.36.11
)
EOF
cat >main.go <<'EOF'
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"
)

func main() {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/proto\r\nContent-Length: 9\r\n\r\n"
	for _, tt := range []struct {
		name, part string
		linger     int
	}{{"reset before the answer", "", 0}, {"reset in the answer", head, 0}, {"closed in the answer", head, -1}} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(c, tt.part)
			_ = c.(*net.TCPConn).SetLinger(tt.linger)
			_ = c.Close()
		}))
		call(tt.name, srv.URL)
		srv.Close()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	_ = l.Close()
	call("nobody listens", "http://"+l.Addr().String())
}

func call(name, url string) {
	ctx := context.Background()
	c := connect.NewClient[emptypb.Empty, emptypb.Empty](&http.Client{Transport: &http.Transport{}}, url+"/a.B/C")
	_, err := c.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	fmt.Printf("%s: %s, context error %v\n", name, connect.CodeOf(err), ctx.Err())
}
EOF
go mod tidy >/dev/null 2>&1
got=$(go run .)
echo "$got"
[ "$got" = "reset before the answer: canceled, context error <nil>
reset in the answer: canceled, context error <nil>
closed in the answer: unknown, context error <nil>
nobody listens: unavailable, context error <nil>" ]
