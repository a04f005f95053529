package mcpend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/mcpdoor"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/wire"
)

// someBoxes are sandboxes that stay.
type someBoxes struct{ mcpdoor.Sandboxes }

func (someBoxes) Shape(context.Context, string, *bool) (turnstone.Shape, error) {
	return turnstone.DefaultShape(), nil
}

func (someBoxes) Create(_ context.Context, s sandboxes.Spec, _ func(string)) (sandboxes.Info, error) {
	return sandboxes.Info{ID: turnstone.SandboxID("sb_" + s.Session)}, nil
}

func (someBoxes) Get(turnstone.SandboxID) (sandboxes.Info, error) { return sandboxes.Info{}, nil }

func (someBoxes) Exec(context.Context, turnstone.SandboxID, sandboxes.Command) (wire.ProcessExit, error) {
	return wire.ProcessExit{}, nil
}

func (someBoxes) Remove(context.Context, turnstone.SandboxID) error { return nil }

// ask makes a request on a connection, whose answer is in the result when done is closed.
func ask(ctx context.Context, e *Endpoint, method, id, body string) (w *httptest.ResponseRecorder, done chan struct{}) {
	r := httptest.NewRequestWithContext(ctx, method, Path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer a")
	r.Header.Set(sessionHeader, id)
	w, done = httptest.NewRecorder(), make(chan struct{})
	go func() { defer close(done); e.Handler().ServeHTTP(w, r) }()
	return w, done
}

const execBody = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"exec","arguments":{"command":"x"}}}`

// open waits until a connection has a number of requests that are not answered.
func open(t *testing.T, e *Endpoint, id string, n int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		e.callers.mu.Lock()
		got := -1
		for of, one := range e.callers.shown {
			if of.id == id {
				got = one.open
			}
		}
		e.callers.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are open, not %d", got, n)
		}
	}
}

// TestRoom: a caller's connection that is silent and has no sandbox makes room for a new one. One with a
// sandbox, a stream or a call stays, and so do those of others.
func TestRoom(t *testing.T) {
	e := endpointAt(mcpdoor.Place{Sandboxes: someBoxes{}, Turns: slowTurns{began: make(chan struct{})}}, nil)
	e.silence = -time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, boxed := initialize(e, "a")
	_, streamed := initialize(e, "a")
	_, called := initialize(e, "a")
	_, others := initialize(e, "b")
	w, done := ask(ctx, e, http.MethodPost, boxed, execBody)
	if <-done; !strings.Contains(w.Body.String(), "exit_code") {
		t.Fatal(w.Body)
	}
	_, streaming := ask(ctx, e, http.MethodGet, streamed, "")
	open(t, e, streamed, 1)
	_, calling := ask(ctx, e, http.MethodPost, called, `{"jsonrpc":"2.0","id":2,"method":"tools/call",`+
		`"params":{"name":"log","arguments":{}}}`)
	open(t, e, called, 1)
	var last string
	for n := range 3 * maxOfCaller {
		w, id := initialize(e, "a")
		if w.Code != http.StatusOK || id == "" {
			t.Fatalf("connection %d: %d %s", n, w.Code, w.Body)
		}
		last = id
	}
	for what, id := range map[string]string{"with a sandbox": boxed, "with a stream": streamed, "with a call": called,
		"of another caller": others, "that is the newest": last} {
		if e.callers.token(of(e, id)) == nil {
			t.Errorf("the connection %s made room", what)
		}
	}
	if n := len(e.callers.all()); n != maxOfCaller+1 {
		t.Errorf("%d connections", n)
	}
	// a stream that its client closes is a sign that the client has gone, however short ago
	e.silence = time.Hour
	if w, _ := initialize(e, "a"); w.Code != http.StatusTooManyRequests {
		t.Errorf("a connection that was silent for a moment made room: %d", w.Code)
	}
	cancel()
	<-streaming
	<-calling
	open(t, e, streamed, 0)
	if w, _ := initialize(e, "a"); w.Code != http.StatusOK || e.callers.token(of(e, streamed)) != nil {
		t.Errorf("a connection whose client has gone made no room: %d", w.Code)
	}
	end(t, e)
}

// of returns the connection with an ID.
func of(e *Endpoint, id string) connection {
	for of := range e.callers.all() {
		if of.id == id {
			return of
		}
	}
	return connection{}
}

// TestRoomOfAll: at the bound of all connections, the one that was silent for longest makes room, also
// that of another caller.
func TestRoomOfAll(t *testing.T) {
	e := endpoint()
	e.silence = -time.Hour
	_, first := initialize(e, "z")
	for n := range maxConnections {
		name := "a" + strings.Repeat("x", n/(maxOfCaller-1))
		if w, _ := initialize(e, name); w.Code != http.StatusOK {
			t.Fatalf("connection %d: %d", n, w.Code)
		}
	}
	if all := e.callers.all(); len(all) != maxConnections || e.callers.token(of(e, first)) != nil {
		t.Errorf("%d connections", len(all))
	}
	end(t, e)
}

// TestCallsWithoutConnection: clients of 2026-07-28 have no connection. Their calls go on in the
// session that they name, and have the token of the request.
func TestCallsWithoutConnection(t *testing.T) {
	e := New(Options{Verifier: verifier{}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(_ context.Context, _ string, token func() (string, error)) (mcpdoor.Place, error) {
			return mcpdoor.Place{Turns: theTurns{token: token}, Sandboxes: someBoxes{}}, nil
		}})
	one := client(t, e, "", withToken{token: "a1"}, nil)
	two := client(t, e, "", withToken{token: "a2"}, nil)
	if v := one.InitializeResult().ProtocolVersion; v != "2026-07-28" {
		t.Fatalf("the version is %s", v)
	}
	ask := func(s *mcp.ClientSession, tool string, args map[string]any) (*mcp.CallToolResult, string) {
		t.Helper()
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return r, r.Content[0].(*mcp.TextContent).Text
	}
	for _, x := range []struct {
		s    *mcp.ClientSession
		want string
	}{{one, "a1"}, {two, "a2"}, {one, "a1"}} {
		if _, text := ask(x.s, "log", map[string]any{"session": "s"}); !strings.HasSuffix(text, "the token "+x.want) {
			t.Errorf("a call with %s: %s", x.want, text)
		}
	}
	r, text := ask(one, "exec", map[string]any{"command": "x"})
	session, _ := r.StructuredContent.(map[string]any)["session"].(string)
	if r.IsError || !strings.HasPrefix(session, "mcp-") {
		t.Errorf("the session is %q: %s", session, text)
	}
	if r, text := ask(two, "exec", map[string]any{"command": "x", "session": session}); r.IsError {
		t.Error(text)
	}
	if n := len(e.live()); n != 0 {
		t.Errorf("there are %d connections", n)
	}
	// they count as no connections
	for n := range maxOfCaller {
		if w, _ := initialize(e, "a"); w.Code != http.StatusOK {
			t.Fatalf("connection %d: %d", n, w.Code)
		}
	}
	end(t, e)
	for of := range e.callers.all() {
		if of.party != "" {
			t.Error("the token of a party is kept")
		}
	}
}

// TestRevocationOfCalls: a running call without a connection ends with its token.
func TestRevocationOfCalls(t *testing.T) {
	over, began := &atomic.Bool{}, make(chan struct{})
	e := New(Options{Verifier: ending{over: over}, Idle: time.Hour, Log: slog.New(slog.DiscardHandler),
		Open: func(context.Context, string, func() (string, error)) (mcpdoor.Place, error) {
			return mcpdoor.Place{Turns: slowTurns{began: began}}, nil
		}})
	s := client(t, e, "", withToken{token: "a1"}, nil)
	failed := make(chan error, 1)
	go func() {
		r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "log", Arguments: map[string]any{"session": "s"}})
		if err == nil && !r.IsError {
			err = errors.New("the call has a result")
		} else {
			err = nil
		}
		failed <- err
	}()
	<-began
	e.check(t.Context())
	if len(e.callers.all()) != 1 {
		t.Error("a token that holds has ended")
	}
	over.Store(true)
	e.check(t.Context())
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if _, err := s.ListTools(t.Context(), nil); err == nil {
		t.Error("a revoked token lists tools")
	}
	end(t, e)
}

// TestGoneCaller: a call without a connection ends when its client has gone.
func TestGoneCaller(t *testing.T) {
	began := make(chan struct{})
	e := endpointAt(mcpdoor.Place{Turns: slowTurns{began: began}}, nil)
	s := client(t, e, "", withToken{token: "a"}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "log", Arguments: map[string]any{"session": "s"}})
		failed <- err
	}()
	<-began
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		e.callers.mu.Lock()
		n := len(e.callers.requests)
		e.callers.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d requests are open", n)
		}
	}
	end(t, e)
}
