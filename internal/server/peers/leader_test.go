package peers_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/peers"
)

// A rival is a controller that leads or not, and that may answer nothing.
type rival struct {
	name string
	mu   sync.Mutex
	peers.Said
	stuck chan struct{} // nil: it answers
}

func (r *rival) set(f func()) { r.mu.Lock(); defer r.mu.Unlock(); f() }

// answers waits until the rival is not stuck, or the request ends.
func (r *rival) answers(q *http.Request) {
	r.mu.Lock()
	stuck := r.stuck
	r.mu.Unlock()
	if stuck != nil {
		select {
		case <-stuck:
		case <-q.Context().Done():
		}
	}
}

// listen serves the rival at a socket, until the test ends.
func (r *rival) listen(t *testing.T) (address string) {
	t.Helper()
	c := config.Peers{Listen: "unix:" + filepath.Join(t.TempDir(), "s")}
	p := open(t, c)
	l, err := p.Listen(t.Context())
	check(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+peers.LeaderPath, func(w http.ResponseWriter, q *http.Request) {
		r.answers(q)
		peers.Leads(func() (int64, bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.Fence, r.Said.Leads
		}).ServeHTTP(w, q)
	})
	mux.HandleFunc("/name", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, r.name)
	})
	mux.HandleFunc("/stream", func(w http.ResponseWriter, q *http.Request) {
		check(t, http.NewResponseController(w).Flush())
		<-q.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, mux) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c.Listen
}

// TestLeader: requests go to the controller that leads, wait while none does, and leave one that
// stopped without a word when another one leads.
func TestLeader(t *testing.T) {
	one, two := &rival{name: "one"}, &rival{name: "two"}
	l := open(t, config.Peers{}).Leader([]string{one.listen(t), two.listen(t)})
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); l.Run(ctx) }()
	defer func() { cancel(); <-ran }()
	c := &http.Client{Transport: l}
	ask := func(path string) (*http.Response, error) { return c.Get("http://controller" + path) }
	who := func() string {
		a, err := ask("/name")
		if err != nil {
			return err.Error()
		}
		defer func() { _ = a.Body.Close() }()
		b, _ := io.ReadAll(a.Body)
		return string(b)
	}
	until := func(want string) {
		t.Helper()
		got := ""
		for deadline := time.Now().Add(2 * time.Minute); got != want; time.Sleep(10 * time.Millisecond) {
			if got = who(); time.Now().After(deadline) {
				t.Fatalf("%q answers, not %s", got, want)
			}
		}
	}

	// none leads
	short, end := context.WithTimeout(t.Context(), 10*time.Millisecond) //wait: it is meant to expire
	r, err := http.NewRequestWithContext(short, http.MethodGet, "http://controller/name", nil)
	check(t, err)
	if _, err := c.Do(r); err == nil {
		t.Error("a controller answers that does not lead")
	}
	end()

	two.set(func() { two.Said = peers.Said{Leads: true, Fence: 1} })
	until("two")
	a, err := ask("/stream")
	check(t, err)
	defer func() { _ = a.Body.Close() }()
	stuck := make(chan struct{})
	two.set(func() { two.stuck = stuck })
	one.set(func() { one.Said = peers.Said{Leads: true, Fence: 2} })
	until("one")
	if _, err := io.ReadAll(a.Body); err == nil {
		t.Error("a stream of the one that is stuck ended well")
	}
	close(stuck)

	// it says that it leads, and has not heard of the newer term
	one.set(func() { one.Said = peers.Said{} })
	until("two")
	one.set(func() { one.Said = peers.Said{Leads: true, Fence: 3} })
	two.set(func() { two.Said = peers.Said{} })
	until("one")
}
