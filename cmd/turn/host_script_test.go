package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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

// scriptHost is a server with one node, whose key is that of a state directory, and with tokens.
type scriptHost struct {
	connectv1.UnimplementedServerServiceHandler
	key  string
	cert string // path of the node's certificate, which need not exist

	mu     sync.Mutex
	tokens []*v1.Token
}

func (s *scriptHost) ListNodes(context.Context, *connect.Request[v1.ListNodesRequest]) (
	*connect.Response[v1.ListNodesResponse], error) {
	return connect.NewResponse(&v1.ListNodesResponse{Nodes: []*v1.Node{{Name: "n1", Key: s.key,
		Certificate: s.certificate()}}}), nil
}

func (s *scriptHost) certificate() []byte {
	b, _ := os.ReadFile(s.cert)
	return b
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

// host starts a server until the script's end: "host NAME HOME". Its node has the key of the state
// directory HOME and the certificate HOME/node.cert, if there is one; its address is the variable
// NAME, and $HOME/server.sock is its operator's socket. Over the network its token is "good".
func host(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: host NAME HOME")
	}
	dir, err := statedir.Open(ts.MkAbs(args[1]))
	ts.Check(err)
	signer, err := key.Ring{Dir: dir}.NodeKey(context.Background())
	ts.Check(err)
	s := &scriptHost{key: signer.String(), cert: dir.Path("node.cert")}
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
	ts.Setenv(args[0]+"_KEY", signer.ID())
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
