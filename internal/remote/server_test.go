package remote_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/crypto/ssh"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	apiserve "turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/remote"
	nodes "turnstone.dev/turnstone/internal/server/node"
	"turnstone.dev/turnstone/internal/server/node/turns"
	"turnstone.dev/turnstone/wire"
)

const token = "the-token-of-the-test"

func signer(t testing.TB, seed byte) *key.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	k, err := key.NewSigner(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// control is the control API before a node: it starts turns by their idempotency keys.
type control struct {
	connectv1.UnimplementedTurnServiceHandler
	connectv1.UnimplementedSessionServiceHandler
	connectv1.UnimplementedServerServiceHandler
	node  *nodes.Node
	turns *turns.Service

	mu      sync.Mutex
	tickets map[string]string // by idempotency key
	calls   map[string]int    // by procedure
	fail    map[string]error  // that the next call answers, by procedure; after it was done
	attest  func([]byte) []byte
	about   string // the node's name in answers
}

// offer answers a channel.
func (c *control) offer(ctx context.Context, client *v1.ChannelClient) (*v1.Channel, error) {
	s, err := c.node.Attest(ctx, nodes.Client{Key: channel.PublicKey(client.ClientPublicKey),
		Nonce: attest.Nonce(client.Nonce)})
	if err != nil {
		return nil, api.ToConnect(err)
	}
	envelope := s.Envelope
	if c.attest != nil {
		envelope = c.attest(envelope)
	}
	return &v1.Channel{Attestation: envelope, ServerPublicKey: s.ServerKey[:],
		Path: "/turnstone/v1/nodes/n1/channel"}, nil
}

// failure returns the error that a call is to answer once.
func (c *control) failure(procedure string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[procedure]++
	err := c.fail[procedure]
	delete(c.fail, procedure)
	if err != nil {
		return api.ToConnect(err)
	}
	return nil
}

func (c *control) count(procedure string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[procedure]
}

func (c *control) StartTurn(ctx context.Context, r *connect.Request[v1.StartTurnRequest]) (
	*connect.Response[v1.StartTurnResponse], error) {
	c.mu.Lock()
	id := c.tickets[r.Msg.IdempotencyKey]
	if id == "" {
		id = "tk_00000000000000000" + string(rune('0'+len(c.tickets)))
		c.tickets[r.Msg.IdempotencyKey] = id
		if err := c.turns.Reserve(turns.Ticket{ID: id, Session: r.Msg.Session,
			Client:  channel.PublicKey(r.Msg.Client.ClientPublicKey),
			Expires: time.Now().Add(time.Hour)}); err != nil {
			return nil, api.ToConnect(err)
		}
	}
	c.mu.Unlock()
	if err := c.failure("StartTurn"); err != nil {
		return nil, err
	}
	ch, err := c.offer(ctx, r.Msg.Client)
	return connect.NewResponse(&v1.StartTurnResponse{Channel: ch,
		Turn: &v1.Turn{TicketId: id, Node: c.about}}), err
}

func (c *control) ConnectTurn(ctx context.Context, r *connect.Request[v1.ConnectTurnRequest]) (
	*connect.Response[v1.ConnectTurnResponse], error) {
	if err := c.failure("ConnectTurn"); err != nil {
		return nil, err
	}
	ch, err := c.offer(ctx, r.Msg.Client)
	return connect.NewResponse(&v1.ConnectTurnResponse{Channel: ch,
		Turn: &v1.Turn{TicketId: r.Msg.TicketId, Node: c.about}}), err
}

func (c *control) CancelTurn(context.Context, *connect.Request[v1.CancelTurnRequest]) (
	*connect.Response[v1.CancelTurnResponse], error) {
	if err := c.failure("CancelTurn"); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelTurnResponse{}), nil
}

func (c *control) ConnectNode(ctx context.Context, r *connect.Request[v1.ConnectNodeRequest]) (
	*connect.Response[v1.ConnectNodeResponse], error) {
	if err := c.failure("ConnectNode"); err != nil {
		return nil, err
	}
	ch, err := c.offer(ctx, r.Msg.Client)
	return connect.NewResponse(&v1.ConnectNodeResponse{Channel: ch, Node: c.about}), err
}

func (c *control) RevokeToken(context.Context, *connect.Request[v1.RevokeTokenRequest]) (
	*connect.Response[v1.RevokeTokenResponse], error) {
	if err := c.failure("RevokeToken"); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.RevokeTokenResponse{}), nil
}

// served is a server with a node n1 in one process, over TLS.
type served struct {
	*control
	http  *httptest.Server
	trust *key.Trust
	tls   *tls.Config
	key   channel.KeyPair
}

func serve(t *testing.T, x turns.Executor) *served {
	t.Helper()
	c := &control{tickets: map[string]string{}, calls: map[string]int{}, fail: map[string]error{},
		about: "n1"}
	var err error
	if c.turns, err = turns.Open(filepath.Join(t.TempDir(), "turns"), x, 4); err != nil {
		t.Fatal(err)
	}
	nodeKey := signer(t, 1)
	c.node = nodes.New(nodes.Options{Name: "n1", Key: nodeKey,
		Commands: func(_ context.Context, d *wire.Dispatcher, p nodes.Peer) error {
			wire.RegisterTurn(d, c.turns.For(p.Key,
				func(ctx context.Context) context.Context { return ctx }))
			return nil
		}})
	calls := apiserve.Services{Turns: c, Sessions: c, Server: c}.Handler(nil)
	mux := http.NewServeMux()
	mux.Handle("/turnstone/v1/", c.node.Handler())
	mux.Handle("/", calls)
	s := &served{control: c, trust: &key.Trust{}, key: channel.NewKeyPair()}
	s.http = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	s.trust.Add(key.Entry{Key: nodeKey.Public, Role: key.Node, Name: "n1"})
	roots := x509.NewCertPool()
	roots.AddCert(s.http.Certificate())
	s.tls = &tls.Config{RootCAs: roots}
	t.Cleanup(func() {
		_ = c.node.Close()
		s.http.Close()
		_ = c.turns.Close()
	})
	return s
}

func address(t *testing.T, text string) remote.Address {
	t.Helper()
	a, err := remote.ParseAddress(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// client returns a client of the server.
func (s *served) client(t *testing.T, change ...func(*remote.ServerOptions)) *remote.Server {
	t.Helper()
	o := remote.ServerOptions{Address: address(t, s.http.URL), Key: s.key, TLS: s.tls,
		Token: func() (string, error) { return token, nil },
		Pins:  func(context.Context, string, []byte) (attest.Pins, error) { return s.trust, nil }}
	for _, f := range change {
		f(&o)
	}
	c := remote.NewServer(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestServerTurn(t *testing.T) {
	x := &teller{}
	s := serve(t, x)
	c := s.client(t)
	turn, err := c.StartTurn(t.Context(), remote.TurnStart{Session: "s1"})
	if err != nil {
		t.Fatal(err)
	}
	dials := 0
	var h heard
	follow := &remote.Turns{Pause: time.Millisecond, Dial: func(ctx context.Context) (
		io.ReadWriteCloser, error) {
		dials++
		stream, err := turn.Dial(ctx)
		if err == nil && dials < 3 { // lost after some bytes
			return &short{ReadWriteCloser: stream, left: 2000 * dials}, nil
		}
		return stream, err
	}}
	report, err := follow.Run(t.Context(), remote.TurnRequest{Ticket: turn.Ticket,
		Document: parse(t, "```bash\necho\n```\n"), Settings: settingsOf("s1")}, &h)
	if err != nil || report.Receipt != "receipt" || x.runs != 1 || h.out.Len() != 50_000 {
		t.Fatalf("%+v, %d runs, %d bytes: %v", report, x.runs, h.out.Len(), err)
	}
	if dials != 3 || s.count("ConnectTurn") != 2 {
		t.Fatalf("%d connections, %d new statements", dials, s.count("ConnectTurn"))
	}
	again := c.Reattach(turn.Ticket)
	h = heard{}
	report, err = (&remote.Turns{Dial: again.Dial}).Follow(t.Context(), turn.Ticket,
		parse(t, "```bash\necho\n```\n"), &h)
	if err != nil || report.Receipt != "receipt" || x.runs != 1 || h.out.Len() != 50_000 {
		t.Fatalf("%+v, %d runs, %d bytes: %v", report, x.runs, h.out.Len(), err)
	}
}

// short is a stream that is lost after some bytes.
type short struct {
	io.ReadWriteCloser
	left int
}

func (s *short) Read(p []byte) (int, error) {
	if s.left <= 0 {
		_ = s.ReadWriteCloser.Close()
		return 0, turnstone.Errorf("test", turnstone.KindDead, "the relay", "is gone")
	}
	n, err := s.ReadWriteCloser.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// TestRepetitions checks that a call is repeated only where nothing can happen twice.
func TestRepetitions(t *testing.T) {
	x := &teller{}
	s := serve(t, x)
	c := s.client(t)
	gone := turnstone.Errorf("x", turnstone.KindUnavailable, "the node", "is away")
	for _, p := range []string{"StartTurn", "ConnectNode", "RevokeToken"} {
		s.fail[p] = gone
	}
	turn, err := c.StartTurn(t.Context(), remote.TurnStart{})
	if err != nil || s.count("StartTurn") != 2 || len(s.tickets) != 1 {
		t.Fatalf("%+v, %d calls, %d tickets: %v", turn, s.count("StartTurn"), len(s.tickets), err)
	}
	stream, err := c.NodeChannel(t.Context(), "")
	if err != nil || s.count("ConnectNode") != 2 {
		t.Fatal(s.count("ConnectNode"), err)
	}
	_ = stream.Close()
	_, err = c.Server.RevokeToken(t.Context(), connect.NewRequest(&v1.RevokeTokenRequest{
		TokenId: "x"}))
	if turnstone.KindOf(err) != turnstone.KindUnavailable || s.count("RevokeToken") != 1 {
		t.Fatal(s.count("RevokeToken"), err)
	}
	s.fail["StartTurn"] = turnstone.Errorf("x", turnstone.KindExhausted, "the quota", "is used up")
	before := s.count("StartTurn")
	if _, err := c.StartTurn(t.Context(), remote.TurnStart{}); err == nil ||
		s.count("StartTurn") != before+1 {
		t.Fatal(s.count("StartTurn"), err)
	}
}

// TestDistrust checks that a manipulated statement is named, and that nothing is sent to its node.
func TestDistrust(t *testing.T) {
	s := serve(t, &teller{})
	c := s.client(t)
	var old []byte
	s.attest = func(b []byte) []byte { old = b; return b }
	stream, err := c.NodeChannel(t.Context(), "n1")
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Close()
	for name, tc := range map[string]struct {
		attest func([]byte) []byte
		about  string
		trust  *key.Trust
		want   channel.Fault
	}{
		"forged": {attest: func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"sig":"`), []byte(`"sig":"AA`), 1)
		}, want: channel.FaultForged},
		"empty":     {attest: func([]byte) []byte { return nil }, want: channel.FaultForged},
		"replayed":  {attest: func([]byte) []byte { return old }, want: channel.FaultReplayed},
		"spliced":   {about: "n2", want: channel.FaultSpliced},
		"untrusted": {trust: &key.Trust{}, want: channel.FaultUntrusted},
	} {
		s.attest, s.about = tc.attest, "n1"
		if tc.about != "" {
			s.about = tc.about
		}
		c := s.client(t, func(o *remote.ServerOptions) {
			if tc.trust != nil {
				o.Pins = func(context.Context, string, []byte) (attest.Pins, error) { return tc.trust, nil }
			}
		})
		turn, err := c.StartTurn(t.Context(), remote.TurnStart{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = (&remote.Turns{Dial: turn.Dial}).Run(t.Context(), remote.TurnRequest{
			Ticket: turn.Ticket, Document: parse(t, "```bash\necho\n```\n")}, nil)
		if channel.FaultOf(err) != tc.want || turnstone.KindOf(err) != turnstone.KindIntegrity ||
			!strings.Contains(err.Error(), s.http.URL) || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTokenStays checks that a token reaches the server alone.
func TestTokenStays(t *testing.T) {
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	front := httptest.NewServer(http.RedirectHandler(other.URL+"/x", http.StatusTemporaryRedirect))
	defer front.Close()
	s := serve(t, &teller{})
	c := s.client(t, func(o *remote.ServerOptions) { o.Address = address(t, front.URL) })
	_, err := c.StartTurn(t.Context(), remote.TurnStart{})
	if len(seen) > 0 || turnstone.KindOf(err) != turnstone.KindInvalid ||
		!strings.Contains(err.Error(), "redirects to "+other.URL) || turnstone.HintOf(err) == "" {
		t.Fatalf("%q: %v", seen, err)
	}
	for text, want := range map[string]string{
		"http://example.org":       "unencrypted",
		"http://10.0.0.1:80":       "unencrypted",
		"http://127.0.0.1.evil.io": "unencrypted",
		"ftp://example.org":        "scheme",
		"https://":                 "no host",
		"https://u:hunter2@h":      "a user or a password",
		"https://h/?x":             "query",
		"unix:":                    "no path",
		"turn.example.org":         "scheme",
		"https://h\n":              "control",
		"https://u:hunter2@h%zz":   "no URL",
	} {
		_, err := remote.ParseAddress(text)
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "hunter2") || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{"https://H.example/": "https://h.example",
		"http://localhost:80/a/": "http://localhost:80/a", "http://[::1]:9": "http://[::1]:9",
		"unix:///run/x": "unix:/run/x", "unix:/run/x": "unix:/run/x"} {
		if a := address(t, text); a.String() != want {
			t.Errorf("%s is %s", text, a)
		}
	}
}

// TestExplained checks that each failure says what to do, and that no error has the token.
func TestExplained(t *testing.T) {
	s := serve(t, &teller{})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	alerts := listenTLS(t)
	for name, tc := range map[string]struct {
		change func(*remote.ServerOptions)
		kind   turnstone.Kind
		says   string
	}{
		"token": {func(o *remote.ServerOptions) {
			o.Token = func() (string, error) { return "wrong-" + token, nil }
		}, turnstone.KindDenied, "TURN_TOKEN"},
		"no token": {func(o *remote.ServerOptions) { o.Token = nil }, turnstone.KindDenied, "TURN_TOKEN"},
		"bad token": {func(o *remote.ServerOptions) {
			o.Token = func() (string, error) { return token + "\n", nil }
		}, turnstone.KindInvalid, "TURN_TOKEN"},
		"certificate": {func(o *remote.ServerOptions) { o.TLS = nil }, turnstone.KindIntegrity,
			"SSL_CERT_FILE"},
		"closed": {func(o *remote.ServerOptions) {
			o.Address = address(t, "https://"+closed.Addr().String())
		}, turnstone.KindUnavailable, "turn serve"},
		"socket": {func(o *remote.ServerOptions) {
			o.Address = address(t, "unix:"+filepath.Join(t.TempDir(), "none.sock"))
		}, turnstone.KindUnavailable, "turn serve"},
		"plain": {func(o *remote.ServerOptions) {
			o.Address = address(t, strings.Replace(plain.URL, "http:", "https:", 1))
		}, turnstone.KindUnavailable, "http://"},
		"TLS": {func(o *remote.ServerOptions) {
			o.Address = address(t, strings.Replace(secure.URL, "https:", "http:", 1))
		}, turnstone.KindInvalid, "https://"},
		"TLS with an alert": {func(o *remote.ServerOptions) {
			o.Address = address(t, "http://"+alerts.Addr().String())
		}, turnstone.KindInvalid, "https://"},
		"another server": {func(o *remote.ServerOptions) { o.Address = address(t, plain.URL) },
			turnstone.KindUnavailable, "version"},
		"HTML": {func(o *remote.ServerOptions) { o.Address = address(t, page(t, http.StatusOK)) },
			turnstone.KindUnavailable, "a proxy"},
		"forbidden": {func(o *remote.ServerOptions) {
			o.Address = address(t, page(t, http.StatusForbidden))
		}, turnstone.KindUnavailable, "a proxy"},
		"moved": {func(o *remote.ServerOptions) {
			o.Address = address(t, page(t, http.StatusMovedPermanently))
		}, turnstone.KindUnavailable, "a proxy"},
		"gateway": {func(o *remote.ServerOptions) {
			o.Address = address(t, page(t, http.StatusBadGateway))
		}, turnstone.KindUnavailable, "server runs"},
	} {
		_, err := s.client(t, tc.change).StartTurn(t.Context(), remote.TurnStart{})
		if turnstone.KindOf(err) != tc.kind || !strings.Contains(turnstone.HintOf(err), tc.says) ||
			strings.Contains(err.Error(), token) {
			t.Errorf("%s: %s: %v; %s", name, turnstone.KindOf(err), err, turnstone.HintOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.client(t).StartTurn(ctx, remote.TurnStart{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestForOperator: a client elsewhere does not get a command for the node's machine as its own.
func TestForOperator(t *testing.T) {
	for hint, want := range map[string]string{"": "", "try again": "try again",
		"list the sessions with turn session ls": "list the sessions with turn session ls",
		"list all damage with turn fsck":         "ask the node's operator: list all damage with turn fsck",
		"run `turn doctor`":                      "ask the node's operator: run `turn doctor`"} {
		if got := remote.ForOperator(hint); got != want {
			t.Errorf("%q: %q", hint, got)
		}
	}
}

// listenTLS answers plain HTTP as most TLS servers do: with an alert. It fails the test if the
// token comes.
func listenTLS(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			n, _ := c.Read(b)
			if bytes.Contains(b[:n], []byte(token)) {
				t.Error("the token is sent to a port that speaks TLS")
			}
			_, _ = c.Write([]byte{0x15, 3, 1, 0, 2, 2, 70})
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l
}

// page returns the address of a program that answers each request with HTML, as a proxy does.
func page(t *testing.T, status int) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("<html><title>It is not here</title></html>"))
	}))
	t.Cleanup(s.Close)
	return s.URL
}
