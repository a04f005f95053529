package controller

import (
	"bytes"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/server/audit"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

const serverName = "https://turn.example.org"

// A world is a controller with its database, its keys and its nodes.
type world struct {
	testing.TB
	*Controller
	dir      string
	times    Times
	store    records.Store
	issuer   *auth.Issuer
	verifier *auth.TokenVerifier
	nodes    []*fakeNode
	http     *httptest.Server
	log      *lockedBuffer
	clients  *http.Client
	watches  int
	audit    *audit.Log
	waiting  fair.Limits
	pools    []placing.Pool
	now      func() time.Time // of the records; nil: the real one
	quota    func(tenant string) quota.Limits
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
}

// newWorld starts a controller with nodes that it follows already.
func newWorld(t testing.TB, nodes ...string) *world {
	w := &world{TB: t, dir: t.TempDir(), log: &lockedBuffer{}}
	// No node is lost, however long a test takes: the nodes register once.
	w.times = Times{Lost: time.Hour, Still: 5 * time.Millisecond, Beat: 20 * time.Millisecond,
		Alive: 20 * time.Millisecond, Gone: 100 * time.Millisecond}
	w.clients = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	for _, name := range nodes {
		w.nodes = append(w.nodes, newFakeNode(t, name))
	}
	w.start()
	t.Cleanup(func() {
		w.stop()
		w.clients.CloseIdleConnections()
	})
	for _, n := range w.nodes {
		w.join(n)
	}
	return w
}

func (w *world) start() {
	w.Helper()
	ctx := w.Context()
	clock := auth.SystemClock()
	var err error
	w.store, err = records.Open(ctx, filepath.Join(w.dir, "server.db"), records.Options{Now: w.now})
	must(w, err)
	w.issuer, err = auth.OpenIssuer(ctx, serverName, filepath.Join(w.dir, "keys", "token"), clock)
	must(w, err)
	publisher, err := auth.NewPublisher(ctx, w.issuer, Register(w.store))
	must(w, err)
	w.verifier, err = auth.NewVerifier(auth.VerifierConfig{Name: serverName, Clock: clock})
	must(w, err)
	w.audit, err = audit.Open(filepath.Join(w.dir, "audit"), audit.Options{Every: time.Hour})
	must(w, err)
	w.Cleanup(func() { _ = w.audit.Close() })
	w.Controller, err = New(ctx, Options{Name: serverName, Records: w.store, Issuer: w.issuer,
		Publisher: publisher, Verifier: w.verifier, Times: w.times, Watches: w.watches,
		Audit: guard.Auditor{Log: w.audit}, Waiting: w.waiting, Quota: w.quota, Pools: w.pools,
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Nodes: func(address string, o ...connect.ClientOption) connectv1.NodeServiceClient {
			return connectv1.NewNodeServiceClient(w.clients, "http://"+address,
				append(api.ClientOptions(), o...)...)
		}})
	must(w, err)
	w.http = httptest.NewServer(w.Callers())
}

// stop ends the controller; crash ends it without its last words.
func (w *world) stop() {
	if w.Controller == nil {
		return
	}
	w.http.CloseClientConnections()
	must(w, w.Close())
	w.http.Close()
	must(w, w.verifier.Close())
	must(w, w.store.Close())
	must(w, w.audit.Close())
	w.Controller = nil
}

// restart ends the controller and starts another one with the same database.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
	for _, n := range w.nodes {
		w.join(n)
	}
}

func (w *world) peersClient() connectv1.ControllerServiceClient {
	return connectv1.NewControllerServiceClient(&http.Client{Transport: direct{w.Peers()}},
		"http://controller", api.ClientOptions()...)
}

// direct calls a handler without a network. It is for calls that are no streams.
type direct struct{ h http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	r.RequestURI = r.URL.RequestURI()
	d.h.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// register says that a node is there.
func (w *world) registerNode(n *fakeNode) {
	w.Helper()
	_, err := w.peersClient().RegisterNode(w.Context(), connect.NewRequest(
		&v1.RegisterNodeRequest{Node: n.node(), Address: n.address()}))
	must(w, err)
}

// join registers a node, and waits until its list has been read.
func (w *world) join(n *fakeNode) {
	w.Helper()
	w.registerNode(n)
	w.eventually("the node is followed", func() bool {
		w.Controller.nodes.mu.Lock()
		defer w.Controller.nodes.mu.Unlock()
		x := w.Controller.nodes.all[n.name]
		return x != nil && w.Controller.nodes.fleet.Synced(n.name) && x.address == n.address()
	})
}

// eventually waits until a condition is true.
func (w *world) eventually(what string, f func() bool) {
	w.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if f() {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	w.Fatalf("%s: it never came\n%s", what, w.log)
}

// A callerClient has the clients of one caller.
type callerClient struct {
	pools     connectv1.PoolServiceClient
	sandboxes connectv1.SandboxServiceClient
	turns     connectv1.TurnServiceClient
	sessions  connectv1.SessionServiceClient
	templates connectv1.TemplateServiceClient
	server    connectv1.ServerServiceClient
	http      *http.Client
	token     string
	id        string
}

// with are the claims of a caller that may do everything in its tenant.
func with(tenant string) auth.Claims {
	return auth.Claims{Tenant: tenant, Subject: "ci", Scopes: auth.AllScopes(),
		Sessions: []auth.Pattern{auth.Any}, Templates: []auth.Pattern{auth.Any},
		Expires: time.Now().Add(time.Hour)}
}

// as returns clients with a token of their own.
func (w *world) as(c auth.Claims) *callerClient {
	w.Helper()
	i, err := w.issuer.Issue(w.Context(), c)
	must(w, err)
	x := w.bearer(i.Token.Reveal())
	x.id = i.ID
	return x
}

func (w *world) bearer(token string) *callerClient {
	return clientsOf(w.clients.Transport, w.http.URL, token)
}

// clientsOf returns the clients of a caller with a token.
func clientsOf(transport http.RoundTripper, at, token string) *callerClient {
	h := &http.Client{Transport: bearer{token, transport}}
	o := api.ClientOptions()
	return &callerClient{pools: connectv1.NewPoolServiceClient(h, at, o...),
		sandboxes: connectv1.NewSandboxServiceClient(h, at, o...),
		turns:     connectv1.NewTurnServiceClient(h, at, o...),
		sessions:  connectv1.NewSessionServiceClient(h, at, o...),
		templates: connectv1.NewTemplateServiceClient(h, at, o...),
		server:    connectv1.NewServerServiceClient(h, at, o...), http: h, token: token}
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(r)
}

// ask makes a request of a message.
func ask[T any](m *T) *connect.Request[T] { return connect.NewRequest(m) }

// newClient returns a client's part with a fresh nonce.
func newClient() *v1.ChannelClient {
	c := &v1.ChannelClient{ClientPublicKey: bytes.Repeat([]byte{1}, 32), Nonce: make([]byte, 32)}
	_, _ = rand.Read(c.Nonce)
	return c
}

// create makes a sandbox that is expected to work.
func (w *world) create(c *callerClient, m *v1.CreateSandboxRequest) *v1.CreateSandboxResponse {
	w.Helper()
	if m.Client == nil {
		m.Client = newClient()
	}
	answer, err := c.sandboxes.CreateSandbox(w.Context(), ask(m))
	must(w, err)
	return answer.Msg
}

// startTurn starts a turn that is expected to work.
func (w *world) startTurn(c *callerClient, key, session string) *v1.StartTurnResponse {
	w.Helper()
	answer, err := c.turns.StartTurn(w.Context(), ask(&v1.StartTurnRequest{IdempotencyKey: key,
		Session: session, Client: newClient()}))
	must(w, err)
	return answer.Msg
}

// fails checks the code of an error, and that its detail says whether a retry helps.
func (w *world) fails(err error, want connect.Code) *api.Status {
	w.Helper()
	if got := connect.CodeOf(err); err == nil || got != want {
		w.Fatalf("the error is %v, want %v: %v", got, want, err)
	}
	s, ok := api.FromConnect(err).(*api.Status)
	if !ok {
		w.Fatalf("%T has no detail", err)
	}
	return s
}
