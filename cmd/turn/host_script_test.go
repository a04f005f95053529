package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/protobuf/types/known/timestamppb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// scriptHost is a server with nodes, whose keys are those of state directories, and with tokens.
type scriptHost struct {
	connectv1.UnimplementedServerServiceHandler
	nodes  []scriptNode
	during func() // runs while the server is asked for its nodes

	mu      sync.Mutex
	tokens  []*v1.Token
	removed bool // the lost node "old"
}

type scriptNode struct {
	key  string
	cert string // path of the node's certificate, which need not exist
}

func (s *scriptHost) ListNodes(context.Context, *connect.Request[v1.ListNodesRequest]) (
	*connect.Response[v1.ListNodesResponse], error) {
	a := &v1.ListNodesResponse{}
	for i, n := range s.nodes {
		shown, _ := os.ReadFile(n.cert)
		a.Nodes = append(a.Nodes, &v1.Node{Name: fmt.Sprint("n", i+1), Key: n.key, Certificate: shown})
	}
	s.mu.Lock()
	if !s.removed {
		a.Lost = []*v1.LostNode{{Node: &v1.Node{Name: "old"}, Since: timestamppb.New(time.Unix(1e9, 0))}}
	}
	s.mu.Unlock()
	s.during()
	return connect.NewResponse(a), nil
}

func (s *scriptHost) RemoveNode(_ context.Context, r *connect.Request[v1.RemoveNodeRequest]) (
	*connect.Response[v1.RemoveNodeResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed || r.Msg.Name != "old" {
		return nil, api.ToConnect(turnstone.Errorf("node.remove", turnstone.KindInvalid, "node "+r.Msg.Name, "answers"))
	}
	s.removed = true
	return connect.NewResponse(&v1.RemoveNodeResponse{Sandboxes: 2, Turns: 1}), nil
}

func (s *scriptHost) CreateToken(_ context.Context, r *connect.Request[v1.CreateTokenRequest]) (
	*connect.Response[v1.CreateTokenResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &v1.Token{TokenId: fmt.Sprint("t", len(s.tokens)+1), Name: r.Msg.Name, Tenant: "local",
		Scopes: r.Msg.Scopes, Created: timestamppb.Now(),
		Expires: timestamppb.New(time.Now().Add(r.Msg.Ttl.AsDuration()))}
	s.tokens = append(s.tokens, t)
	return connect.NewResponse(&v1.CreateTokenResponse{Token: t, Secret: "good"}), nil
}

func (s *scriptHost) ListTokens(context.Context, *connect.Request[v1.ListTokensRequest]) (
	*connect.Response[v1.ListTokensResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return connect.NewResponse(&v1.ListTokensResponse{Tokens: s.tokens}), nil
}

func (s *scriptHost) RevokeToken(_ context.Context, r *connect.Request[v1.RevokeTokenRequest]) (
	*connect.Response[v1.RevokeTokenResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tokens {
		if t.TokenId == r.Msg.TokenId {
			t.Revoked = true
			return connect.NewResponse(&v1.RevokeTokenResponse{Token: t}), nil
		}
	}
	return nil, api.ToConnect(turnstone.Errorf("token.revoke", turnstone.KindNotFound,
		"token "+r.Msg.TokenId, "does not exist"))
}

// host starts a server until the script's end: "host NAME HOME…". Its nodes n1, n2… have the keys of
// the state directories and the certificates HOME/node.cert, if there are any; its address is the
// variable NAME, and $HOME/server.sock of the first is its operator's socket. Over the network its
// token is "good". The shell script HOME/during of the first runs whenever it is asked for its nodes.
func host(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: host NAME HOME…")
	}
	s := &scriptHost{}
	var dir *statedir.Dir
	for i, home := range args[1:] {
		one, err := statedir.Open(ts.MkAbs(home))
		ts.Check(err)
		signer, err := key.Ring{Dir: one}.NodeKey(context.Background())
		ts.Check(err)
		s.nodes = append(s.nodes, scriptNode{signer.String(), one.Path("node.cert")})
		if i == 0 {
			dir = one
			ts.Setenv(args[0]+"_KEY", signer.ID())
		}
	}
	folder := ts.MkAbs(".")
	s.during = func() {
		if script, err := os.ReadFile(dir.Path("during")); err == nil {
			cmd := exec.Command("sh", "-e", "-c", string(script))
			cmd.Dir = folder
			if out, err := cmd.CombinedOutput(); err != nil {
				panic(fmt.Sprintf("%v: %s", err, out))
			}
		}
	}
	calls := serve.Services{Server: s}.Handler(nil)
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer good" {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		calls.ServeHTTP(w, r)
	}))
	_ = os.Remove(dir.Path("server.sock"))
	socket, err := net.Listen("unix", dir.Path("server.sock"))
	ts.Check(err)
	inside := &httptest.Server{Listener: socket, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				http.Error(w, "a token of another server", http.StatusUnauthorized)
				return
			}
			calls.ServeHTTP(w, r)
		})}}
	inside.Start()
	ts.Setenv(args[0], outside.URL)
	ts.Setenv(args[0]+"_PORT", strings.TrimPrefix(filepath.Base(outside.URL), "127.0.0.1:"))
	ts.Defer(func() { outside.Close(); inside.Close() })
}

// tlsPort starts a port that speaks TLS: "tlsport NAME". Its address is the variable NAME, and the
// file NAME.log has what comes over plain connections.
func tlsPort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tlsport NAME")
	}
	log, err := os.Create(ts.MkAbs(args[0] + ".log"))
	ts.Check(err)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Listener = &noted{s.Listener, log}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	ts.Setenv(args[0], s.Listener.Addr().String())
	ts.Defer(func() { s.Close(); _ = log.Close() })
}

// noted writes what its connections receive into a file.
type noted struct {
	net.Listener
	to *os.File
}

func (n *noted) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &notedConn{c, n.to}, nil
}

type notedConn struct {
	net.Conn
	to *os.File
}

func (n *notedConn) Read(p []byte) (int, error) {
	count, err := n.Conn.Read(p)
	_, _ = n.to.Write(p[:count])
	return count, err
}
