package router

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/wire"
)

// An agent is one at whose ports nothing listens, and in which no file is there.
type agent struct {
	wire.SandboxServer
	wire.FileSystemServer
}

func (agent) Connect(context.Context, *wire.Conn, *wire.SandboxConnectParams) error {
	return turnstone.Errorf("test", turnstone.KindUnavailable, "the port", "is closed")
}

func (agent) Stat(context.Context, *wire.Conn, *wire.FileSystemStatParams) (*wire.FileSystemStatResult, error) {
	return nil, turnstone.Errorf("test", turnstone.KindNotFound, "the file", "is not there")
}

// A busy server takes a number of calls and then refuses some, again and again.
type busy struct {
	rate, refuses int
	err           error // of a call that is one too many

	mu      sync.Mutex
	calls   int
	opened  int
	refused int
	d       *wire.Dispatcher
}

func newBusy(rate, refuses int, err error) *busy {
	b := &busy{rate: rate, refuses: refuses, err: err, d: wire.NewDispatcher()}
	wire.RegisterSandbox(b.d, agent{})
	wire.RegisterFileSystem(b.d, agent{})
	return b
}

func (b *busy) take() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	if b.refuses > 0 && (b.calls-1)%(b.rate+b.refuses) >= b.rate {
		b.refused++
		return b.err
	}
	return nil
}

func (b *busy) List(context.Context, string, string) ([]*v1.Sandbox, error) {
	return []*v1.Sandbox{{SandboxId: "sb_1", State: v1.SandboxState_SANDBOX_STATE_READY}}, b.take()
}

func (b *busy) Open(context.Context, string, string) (io.ReadWriteCloser, error) {
	if err := b.take(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.opened++
	b.mu.Unlock()
	near, far := net.Pipe()
	wire.NewConn(far, wire.Options{Dispatcher: b.d})
	return near, nil
}

func rateError(wait time.Duration) error {
	return &api.Status{RetryAfter: wait, Err: turnstone.Errorf("test", turnstone.KindExhausted, "the token",
		"sends more requests than its rate allows")}
}

// TestRate: 1,000 calls in a row that are far more than the rate of the server allows are answered, each in
// one channel.
func TestRate(t *testing.T) {
	const calls = 1000
	b := newBusy(50, 2, rateError(time.Millisecond))
	h := New(Options{Server: b, Cluster: "c", Log: slog.New(slog.DiscardHandler), Network: true})
	for n := range calls {
		r := httptest.NewRequest(http.MethodGet, fmt.Sprint("/exists/", n), nil)
		r.Header.Set(idHeader, "a")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"exists":false`) {
			t.Fatalf("call %d: %d %s", n, w.Code, w.Body)
		}
	}
	if b.refused < calls/50 || b.opened != calls {
		t.Errorf("the server refused %d calls, and opened %d channels for %d calls", b.refused, b.opened, calls)
	}
}

// TestWaits: a server that does not take calls for longer than a request waits makes it 429 or 503, with
// the time after which to ask again; other errors are told at once.
func TestWaits(t *testing.T) {
	away := turnstone.Errorf("test", turnstone.KindUnavailable, "the server", "is away")
	dial := &api.Status{RetryAfter: time.Second, Err: turnstone.Errorf("websocket.dial", turnstone.KindUnavailable,
		"the server", "answers 429")}
	full := turnstone.Errorf("test", turnstone.KindExhausted, "the disk", "is full")
	for _, c := range []struct {
		err    error
		status int
		after  string
		asked  bool
	}{
		{rateError(3 * time.Second), http.StatusTooManyRequests, "3", false},
		{rateError(time.Millisecond), http.StatusTooManyRequests, "1", true},
		{dial, http.StatusTooManyRequests, "1", false},
		{away, http.StatusServiceUnavailable, "1", true},
		{full, http.StatusBadGateway, "", false},
	} {
		b := newBusy(0, 1, c.err)
		h := &handler{o: Options{Server: b, Cluster: "c", Log: slog.New(slog.DiscardHandler)}, known: map[[2]string]found{},
			requests: shares{most: maxRequests}, rateWait: 200 * time.Millisecond, awayWait: 200 * time.Millisecond}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(idHeader, "a")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.status || w.Header().Get("Retry-After") != c.after || b.refused > 1 != c.asked {
			t.Errorf("%v: %d after %q, and %d calls", c.err, w.Code, w.Header().Get("Retry-After"), b.refused)
		}
		if h.requests.sum != 0 {
			t.Errorf("%v: %d places are left", c.err, h.requests.sum)
		}
	}
	// A caller who leaves ends the wait.
	ctx, leave := context.WithCancel(t.Context())
	b := newBusy(0, 1, away)
	h := New(Options{Server: b, Cluster: "c", Log: slog.New(slog.DiscardHandler), Network: true})
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		r.Header.Set(idHeader, "a")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	leave()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the call goes on without its caller")
	}
}

// moved is a server at which the object's first sandbox is gone.
type moved struct {
	*busy
	lists int
}

func (m *moved) List(context.Context, string, string) ([]*v1.Sandbox, error) {
	m.lists++
	return []*v1.Sandbox{{SandboxId: fmt.Sprint("sb_", m.lists), State: v1.SandboxState_SANDBOX_STATE_READY}}, nil
}

func (m *moved) Open(ctx context.Context, namespace, id string) (io.ReadWriteCloser, error) {
	if id == "sb_1" {
		return nil, turnstone.Errorf("test", turnstone.KindNotFound, id, "is not there")
	}
	return m.busy.Open(ctx, namespace, id)
}

// TestMoved: a sandbox that is gone since it was found is looked for again.
func TestMoved(t *testing.T) {
	m := &moved{busy: newBusy(10, 0, nil)}
	h := New(Options{Server: m, Cluster: "c", Log: slog.New(slog.DiscardHandler), Network: true})
	r := httptest.NewRequest(http.MethodGet, "/exists/x", nil)
	r.Header.Set(idHeader, "a")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusOK || m.lists != 2 {
		t.Errorf("%d %s after %d lists", w.Code, w.Body, m.lists)
	}
}
