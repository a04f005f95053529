package gateway

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/api/serve"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/server/auth"
)

func TestMain(m *testing.M) {
	runChild()
	goleak.VerifyTestMain(leaktest.Patient(m))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const serverName = "https://turn.example.org"

// register keeps revocations in memory.
type register struct {
	mu     sync.Mutex
	list   []auth.Revocation
	number uint64
}

func (r *register) Revoke(_ context.Context, list ...auth.Revocation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, list...)
	return nil
}

func (r *register) Revocations(context.Context, time.Time) ([]auth.Revocation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]auth.Revocation(nil), r.list...), nil
}

func (r *register) Number(context.Context) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	return r.number, nil
}

// movable is a clock that a test moves.
type movable struct{ wall, up atomic.Int64 }

func (m *movable) clock() *auth.Clock {
	start := time.Now()
	return auth.NewClock(func() time.Time { return time.Now().Add(time.Duration(m.wall.Load())) },
		func() time.Duration { return time.Since(start) + time.Duration(m.up.Load()) })
}

// An authority issues tokens.
type authority struct {
	clock     *auth.Clock
	time      movable
	keyFile   string
	issuer    *auth.Issuer
	publisher *auth.Publisher
	verifier  *auth.TokenVerifier
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{keyFile: filepath.Join(t.TempDir(), "keys", "token")}
	a.clock = a.time.clock()
	var err error
	a.issuer, err = auth.OpenIssuer(t.Context(), serverName, a.keyFile, a.clock)
	check(t, err)
	a.publisher, err = auth.NewPublisher(t.Context(), a.issuer, &register{})
	check(t, err)
	a.verifier, err = auth.NewVerifier(auth.VerifierConfig{Name: serverName, Clock: a.clock,
		Stale: time.Hour})
	check(t, err)
	t.Cleanup(func() { check(t, a.verifier.Close()) })
	_, err = a.publisher.Follow(a.verifier)
	check(t, err)
	return a
}

func (a *authority) claims() auth.Claims {
	return auth.Claims{Tenant: "acme", Subject: "ci", Scopes: auth.AllScopes(),
		Sessions: []auth.Pattern{auth.Any}, Templates: []auth.Pattern{auth.Any},
		Expires: a.clock.Now().Add(10 * time.Minute)}
}

func (a *authority) issue(t testing.TB, c auth.Claims) auth.Issued {
	t.Helper()
	i, err := a.issuer.Issue(t.Context(), c)
	check(t, err)
	return i
}

func (a *authority) token(t testing.TB) string { return a.issue(t, a.claims()).Token.Reveal() }

// private reads the issuer's key, to sign what the issuer never would.
func (a *authority) private(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	b, err := os.ReadFile(a.keyFile)
	check(t, err)
	block, _ := pem.Decode(b)
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(t, err)
	return k.(ed25519.PrivateKey)
}

// craft signs any header and claims with the issuer's key.
func (a *authority) craft(t testing.TB, header, claims map[string]any) string {
	t.Helper()
	h := map[string]any{"alg": "EdDSA", "kid": a.issuer.Keys()[0].ID, "typ": "at+jwt"}
	now := a.clock.Now().Unix()
	c := map[string]any{"iss": serverName, "aud": serverName, "sub": "ci", "jti": "tk_test",
		"iat": now, "exp": now + 600, "tenant": "acme", "scope": "turns:read"}
	for k, v := range header {
		h[k] = v
	}
	for k, v := range claims {
		c[k] = v
	}
	part := func(v any) string {
		b, err := json.Marshal(v)
		check(t, err)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	input := part(h) + "." + part(c)
	return input + "." + base64.RawURLEncoding.EncodeToString(
		ed25519.Sign(a.private(t), []byte(input)))
}

// turnService answers a few calls, with the caller's tenant.
type turnService struct {
	connectv1.UnimplementedTurnServiceHandler
	called atomic.Int64
}

func (s *turnService) GetTurn(ctx context.Context, r *connect.Request[v1.GetTurnRequest]) (
	*connect.Response[v1.GetTurnResponse], error) {
	s.called.Add(1)
	p, ok := auth.FromContext(ctx)
	if !ok {
		return nil, turnstone.Errorf("turn.get", turnstone.KindInternal, "", "no principal")
	}
	return connect.NewResponse(&v1.GetTurnResponse{Turn: &v1.Turn{TicketId: r.Msg.TicketId,
		Session: p.Tenant}}), nil
}

func (s *turnService) WatchTurns(ctx context.Context, _ *connect.Request[v1.WatchTurnsRequest],
	out *connect.ServerStream[v1.WatchTurnsResponse]) error {
	s.called.Add(1)
	if err := out.Send(&v1.WatchTurnsResponse{Turn: &v1.Turn{TicketId: ticket}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// A scene is a gateway whose callers connect over a network.
type scene struct {
	*authority
	*Gateway
	turns *turnService
	where locations
	at    string // HOST:PORT
	tls   *tls.Config
	end   func() // ends Serve, and waits
}

// locations is a Locator with fixed answers.
type locations struct {
	mu    sync.Mutex
	nodes map[string]string
	asked []*v1.Principal
}

func (l *locations) LocateChannel(_ context.Context,
	r *connect.Request[v1.LocateChannelRequest]) (*connect.Response[v1.LocateChannelResponse],
	error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, r.Msg.Principal)
	name := r.Msg.GetNode() + r.Msg.GetSandboxId()
	if at := l.nodes[name]; at != "" {
		return connect.NewResponse(&v1.LocateChannelResponse{Node: "n1", Address: at}), nil
	}
	return nil, api.ToConnect(turnstone.Errorf("channel.locate", turnstone.KindNotFound, name,
		"does not exist"))
}

func dialNode(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// A change changes what newScene makes.
type change func(*Options, *ServeOptions)

func limits(l Limits) change { return func(o *Options, _ *ServeOptions) { o.Limits = l } }

func newScene(t testing.TB, changes ...change) *scene {
	t.Helper()
	s := &scene{authority: newAuthority(t), turns: &turnService{}}
	s.where.nodes = map[string]string{}
	log := slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	o := Options{Name: serverName, Verifier: s.verifier, Locator: &s.where, Dial: dialNode,
		Control: serve.Services{Turns: s.turns}.Handler(nil), Log: log}
	var so ServeOptions
	for _, c := range changes {
		c(&o, &so)
	}
	s.Gateway, s.tls = New(o), so.TLS
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	s.at = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, so) }()
	s.end = sync.OnceFunc(func() {
		cancel()
		check(t, <-done)
	})
	t.Cleanup(func() {
		s.end()
		check(t, s.Close())
	})
	return s
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if os.Getenv("GATEWAY_TEST_LOG") != "" {
		w.t.Log(string(p))
	}
	return len(p), nil
}

// transport returns a client's, of HTTP/1.1 or of HTTP/2 alone.
func (s *scene) transport(t testing.TB, two bool) *http.Transport {
	var p http.Protocols
	p.SetHTTP1(!two)
	p.SetHTTP2(two && s.tls != nil)
	p.SetUnencryptedHTTP2(two && s.tls == nil)
	tr := &http.Transport{Protocols: &p, TLSClientConfig: s.trusting()}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// trusting returns a client's TLS, which accepts the certificate of the server, or nil.
func (s *scene) trusting() *tls.Config {
	if s.tls == nil {
		return nil
	}
	c, err := s.tls.GetCertificate(nil)
	if err != nil {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.Leaf)
	return &tls.Config{RootCAs: pool, ServerName: "turn.example.org"}
}

func (s *scene) url() string {
	if s.tls != nil {
		return "https://" + s.at
	}
	return "http://" + s.at
}

// bearer adds a token to requests.
type bearer struct {
	http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.RoundTripper.RoundTrip(r)
}

func (s *scene) client(t testing.TB, token string, two bool,
	o ...connect.ClientOption) connectv1.TurnServiceClient {
	return connectv1.NewTurnServiceClient(
		&http.Client{Transport: bearer{s.transport(t, two), token}}, s.url(),
		append(api.ClientOptions(), o...)...)
}

const ticket = "tk_0123456789abcdefgh"

func get(ctx context.Context, c connectv1.TurnServiceClient) error {
	r, err := c.GetTurn(ctx, connect.NewRequest(&v1.GetTurnRequest{TicketId: ticket}))
	if err == nil && r.Msg.Turn.TicketId != ticket {
		return turnstone.Errorf("test", turnstone.KindInternal, "", "%v", r.Msg)
	}
	return err
}

// works reports a gateway that does not answer others. They have another address.
func (s *scene) works(t testing.TB) {
	t.Helper()
	tr := s.transport(t, false)
	tr.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
	c := connectv1.NewTurnServiceClient(&http.Client{Transport: bearer{tr, s.token(t)}}, s.url(),
		api.ClientOptions()...)
	if err := get(t.Context(), c); err != nil {
		t.Errorf("another client is not served: %v", err)
	}
}
