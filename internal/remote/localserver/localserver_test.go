package localserver

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/ownsocket"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// A young server gets its node after some questions.
type young struct {
	turnstonev1connect.UnimplementedServerServiceHandler
	without int32 // questions that are answered without a node; below 0: it fails
	asked   atomic.Int32
}

func (y *young) ListNodes(context.Context, *connect.Request[v1.ListNodesRequest]) (
	*connect.Response[v1.ListNodesResponse], error) {
	a := new(v1.ListNodesResponse)
	switch n := y.asked.Add(1); {
	case y.without < 0:
		return nil, connect.NewError(connect.CodeUnavailable, nil)
	case n > y.without:
		a.Nodes = []*v1.Node{{}}
	}
	return connect.NewResponse(a), nil
}

// TestProgramEnds: a program that ends at once, as it does where another process's server has the socket,
// is no failure while that server has no node yet. If nobody serves, it is started again a few times.
func TestProgramEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		without, launches int32
		fails             bool
	}{
		"another server begins": {without: 20, launches: 1},
		"nobody serves":         {without: -1, launches: launches, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "local") // a short path: it has a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			l, err := ownsocket.Listen(dir, hosts.SocketFile)
			if err != nil {
				t.Fatal(err)
			}
			mux := http.NewServeMux()
			mux.Handle(turnstonev1connect.NewServerServiceHandler(&young{without: tt.without}))
			server := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
			server.Protocols.SetHTTP1(true)
			server.Protocols.SetUnencryptedHTTP2(true)
			done := make(chan struct{})
			go func() { defer close(done); _ = server.Serve(l) }()
			t.Cleanup(func() { _ = server.Close(); <-done })
			program := filepath.Join(dir, "turn")
			if err := os.WriteFile(program, []byte("#!/bin/sh\necho x >>\"$TURN_HOME/launched\"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			err = (&Starter{Dir: dir, Program: program}).Start(t.Context())
			if tt.fails != (err != nil) || err != nil && turnstone.KindOf(err) != turnstone.KindUnavailable {
				t.Error(err)
			}
			if b, _ := os.ReadFile(filepath.Join(dir, "launched")); bytes.Count(b, []byte("x")) != int(tt.launches) {
				t.Errorf("launched %q", b)
			}
		})
	}
}
