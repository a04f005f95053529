package mcpend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mcpauth "github.com/modelcontextprotocol/go-sdk/auth"
	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/internal/server/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// verifier knows tokens that are the subject of their caller.
type verifier struct{}

func (verifier) Verify(_ context.Context, token string) (auth.Principal, error) {
	switch token {
	case "bad":
		return auth.Principal{}, errors.New("the token sesame is bad")
	case "stale":
		return auth.Principal{}, turnstone.Errorf("auth", turnstone.KindUnavailable, "list", "is old")
	case "narrow":
		return auth.Principal{Subject: "a", Sandbox: "sb_1"}, nil
	}
	return auth.Principal{Tenant: "t", Subject: strings.TrimRight(token, "0123456789")}, nil
}

// endpoint returns an endpoint whose connections make no room.
func endpoint() *Endpoint { return endpointAt(mcpdoor.Place{}, errors.New("no place")) }

// endpointAt returns an endpoint whose connections have a place.
func endpointAt(p mcpdoor.Place, err error) *Endpoint {
	e := New(Options{Verifier: verifier{}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string, func() (string, error)) (mcpdoor.Place, error) {
			return p, err
		}})
	e.silence = time.Hour
	return e
}

// initialize begins a connection, and returns the status and the connection's name.
func initialize(e *Endpoint, token string) (*httptest.ResponseRecorder, string) {
	r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(`{"jsonrpc":"2.0","id":1,`+
		`"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
		`"clientInfo":{"name":"t","version":"1"}}}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	return w, w.Header().Get(sessionHeader)
}

// TestTokens: without a token that counts, nothing begins, and no answer has words of the token.
func TestTokens(t *testing.T) {
	e := endpoint()
	for token, want := range map[string]int{"": 401, "bad": 401, "narrow": 401, "stale": 500} {
		w, id := initialize(e, token)
		if w.Code != want || id != "" || strings.Contains(w.Body.String(), "sesame") {
			t.Errorf("%q: %d %s", token, w.Code, w.Body)
		}
	}
	end(t, e)
}

// TestArrive: an address that comes too often is refused before its token is looked at.
func TestArrive(t *testing.T) {
	e := endpoint()
	e.o.Arrive = func(*http.Request) error {
		return &api.Status{RetryAfter: 1500 * time.Millisecond, Err: turnstone.Errorf("gateway.rate",
			turnstone.KindExhausted, "the address", "comes too often")}
	}
	h := e.arrived(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it passed") }))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path, nil))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "2" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	end(t, e)
}

// TestConnectionsOfCaller: a caller has a bound of connections, which leaves others theirs; tokens of
// one subject are one caller.
func TestConnectionsOfCaller(t *testing.T) {
	e := endpoint()
	for n := range maxOfCaller {
		if w, id := initialize(e, fmt.Sprintf("a%d", n)); w.Code != 200 || id == "" {
			t.Fatalf("connection %d: %d %s", n, w.Code, w.Body)
		}
	}
	if w, _ := initialize(e, "a"); w.Code != http.StatusTooManyRequests {
		t.Errorf("one more: %d", w.Code)
	}
	w, id := initialize(e, "b")
	if w.Code != 200 {
		t.Errorf("another caller: %d", w.Code)
	}
	for _, x := range []struct { // in this order: b's own end is the last
		token string
		want  int
	}{{"a", 403}, {"b", 204}, {"b", 404}} {
		r := httptest.NewRequest(http.MethodDelete, Path, nil)
		r.Header.Set(sessionHeader, id)
		r.Header.Set("Authorization", "Bearer "+x.token)
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, r)
		if w.Code != x.want {
			t.Errorf("%s ends b's connection: %d", x.token, w.Code)
		}
	}
	end(t, e)
}

// TestRequestsOfCaller: the requests of a caller that end late leave others theirs, and the caller's
// next ones are admitted when they have ended.
func TestRequestsOfCaller(t *testing.T) {
	e := endpoint()
	gate, here := make(chan struct{}), make(chan struct{}, requestsOfCaller)
	h := mcpauth.RequireBearerToken(e.verify, &mcpauth.RequireBearerTokenOptions{
		AllowMissingExpiration: true})(e.bounded(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) {
			here <- struct{}{}
			<-gate
		}), nil))
	ask := func(token string) int {
		r := httptest.NewRequest(http.MethodGet, Path, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	var slow sync.WaitGroup
	for n := range requestsOfCaller {
		slow.Go(func() { ask(fmt.Sprintf("a%d", n)) })
	}
	for range requestsOfCaller {
		<-here
	}
	if got := ask("a"); got != http.StatusTooManyRequests {
		t.Errorf("one more: %d", got)
	}
	close(gate)
	if got := ask("b"); got != http.StatusOK {
		t.Errorf("another caller: %d", got)
	}
	slow.Wait()
	if got := ask("a"); got != http.StatusOK || len(e.callers.requests) != 0 {
		t.Errorf("after the others: %d, %v", got, e.callers.requests)
	}
	end(t, e)
}

// call makes a call of a tool on a connection, whose place is opened if it is the first one.
func call(e *Endpoint, token, id string) string {
	r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(`{"jsonrpc":"2.0","id":2,`+
		`"method":"tools/call","params":{"name":"log","arguments":{}}}`))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set(sessionHeader, id)
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	return w.Body.String()
}

// theTurns are turns whose list says which token it was asked with.
type theTurns struct {
	mcpdoor.Turns
	token func() (string, error)
}

func (f theTurns) Log(context.Context, string, int) (*turnstone.Graph, error) {
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	return nil, errors.New("asked with the token " + token)
}

// TestTokenOfConnection: a call is made with the latest token of its own connection, however many
// connections tokens of the same subject have: they may grant less, or more.
func TestTokenOfConnection(t *testing.T) {
	e := New(Options{Verifier: verifier{}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(_ context.Context, _ string, token func() (string, error)) (mcpdoor.Place, error) {
			return mcpdoor.Place{Turns: theTurns{token: token}}, nil
		}})
	_, one := initialize(e, "a1")
	_, two := initialize(e, "a2")
	for _, x := range []struct{ token, id, want string }{
		{"a1", one, "a1"}, {"a2", two, "a2"}, {"a1", one, "a1"},
		{"a3", one, "a3"}, // renewed
		{"a2", two, "a2"},
	} {
		if got := call(e, x.token, x.id); !strings.Contains(got, "asked with the token "+x.want+`"`) {
			t.Errorf("a call with %s: %s", x.token, got)
		}
		// a request of another connection comes before the next call of this one
		for _, id := range []string{one, two} {
			if id != x.id {
				call(e, "a9", id)
			}
		}
		place := e.callers.token(connection{caller: callerOf(auth.Principal{Tenant: "t", Subject: "a"}), id: x.id})
		if place == nil || *place.Load() != x.want {
			t.Errorf("after a request of another connection, another token than %s counts", x.want)
		}
	}
	call(e, "b1", one) // of another caller
	if got := call(e, "a1", one); !strings.Contains(got, "the token a1") {
		t.Error(got)
	}
	end(t, e)
	if all := e.callers.all(); len(all) != 0 {
		t.Errorf("tokens of %d connections are kept", len(all))
	}
}

// ending is a verifier whose tokens end.
type ending struct {
	verifier
	over *atomic.Bool
}

func (v ending) Verify(ctx context.Context, token string) (auth.Principal, error) {
	if v.over.Load() && token == "a1" {
		return auth.Principal{}, errors.New("it is revoked")
	}
	return v.verifier.Verify(ctx, token)
}

// A counting verifier counts the tokens that it verifies.
type counting struct {
	verifier
	count *atomic.Int64
}

func (v counting) Verify(ctx context.Context, token string) (auth.Principal, error) {
	v.count.Add(1)
	return v.verifier.Verify(ctx, token)
}

// TestChecks: whether tokens hold is looked at so often that connections end within a second, so each token is verified once
// for all its connections.
func TestChecks(t *testing.T) {
	var count atomic.Int64
	e := New(Options{Verifier: counting{count: &count}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string, func() (string, error)) (mcpdoor.Place, error) {
			return mcpdoor.Place{}, nil
		}})
	for _, token := range []string{"a1", "a1", "b1"} {
		initialize(e, token)
	}
	if n := len(e.callers.all()); n != 3 {
		t.Fatalf("there are %d connections", n)
	}
	count.Store(0)
	if e.check(t.Context()); count.Load() != 2 || checkEvery >= time.Second {
		t.Errorf("%d tokens are verified each %v", count.Load(), checkEvery)
	}
	end(t, e)
}

// A slowTurns is a place whose call ends with its context alone.
type slowTurns struct {
	mcpdoor.Turns
	began chan struct{}
}

func (f slowTurns) Log(ctx context.Context, _ string, _ int) (*turnstone.Graph, error) {
	close(f.began)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestRevocation: when the token of a connection ends, its stream, its call and its place end too;
// those of another token stay.
func TestRevocation(t *testing.T) {
	over := &atomic.Bool{}
	began, closed := make(chan struct{}), make(chan struct{})
	e := New(Options{Verifier: ending{over: over}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string, func() (string, error)) (mcpdoor.Place, error) {
			return mcpdoor.Place{Turns: slowTurns{began: began},
				Close: func() error { close(closed); return nil }}, nil
		}})
	_, one := initialize(e, "a1")
	_, two := initialize(e, "b1")
	stream := func(token, id string) chan struct{} {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, Path, nil)
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set(sessionHeader, id)
		done := make(chan struct{})
		go func() { defer close(done); e.Handler().ServeHTTP(httptest.NewRecorder(), r) }()
		return done
	}
	first, second := stream("a1", one), stream("b1", two)
	called := make(chan struct{})
	go func() { defer close(called); call(e, "a1", one) }()
	<-began
	e.check(t.Context())
	select {
	case <-first:
		t.Fatal("a stream ended whose token holds")
	default:
	}
	over.Store(true)
	e.check(t.Context())
	for what, ended := range map[string]chan struct{}{"stream": first, "call": called, "place": closed} {
		select {
		case <-ended:
		case <-time.After(2 * time.Minute):
			t.Fatalf("the %s outlives the token", what)
		}
	}
	if e.live()[one] || !e.live()[two] {
		t.Error("the wrong connection ended")
	}
	end(t, e)
	<-second
}

// TestManyAtOnce: the bound of connections is exact when many begin at once.
func TestManyAtOnce(t *testing.T) {
	e := endpoint()
	var all sync.WaitGroup
	var begun atomic.Int32
	for n := range 3 * maxOfCaller {
		all.Go(func() {
			if w, id := initialize(e, fmt.Sprintf("a%d", n)); w.Code == http.StatusOK && id != "" {
				begun.Add(1)
			}
		})
	}
	all.Wait()
	if n := begun.Load(); n != maxOfCaller {
		t.Errorf("%d connections", n)
	}
	if len(e.callers.starting) != 0 {
		t.Errorf("%v are reserved", e.callers.starting)
	}
	end(t, e)
}

func end(t *testing.T, e *Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := e.closeDoors(ctx); err != nil {
		t.Error(err)
	}
}
