package pg_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// A gate forwards connections to a server. While it is shut, nothing passes, and nothing ends.
type gate struct {
	net.Listener
	target string

	mu    sync.Mutex
	shut  bool
	open  chan struct{} // closed while it is open
	conns []net.Conn
}

// newGate returns a gate for the server whose socket is in the folder.
func newGate(t *testing.T, folder string) (g *gate, dir string) {
	t.Helper()
	const name = ".s.PGSQL.5432"
	dir = t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	g = &gate{Listener: l, target: filepath.Join(folder, name), open: make(chan struct{})}
	close(g.open)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("unix", g.target)
			if err != nil {
				_ = c.Close()
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, c, d)
			g.mu.Unlock()
			wg.Go(func() { g.pass(d, c) })
			wg.Go(func() { g.pass(c, d) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.set(false)
		g.mu.Lock()
		for _, c := range g.conns {
			_ = c.Close()
		}
		g.mu.Unlock()
		wg.Wait()
	})
	return g, dir
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if shut == g.shut {
		return
	}
	if g.shut = shut; shut {
		g.open = make(chan struct{})
	} else {
		close(g.open)
	}
}

func (g *gate) pass(to, from net.Conn) {
	b := make([]byte, 4096)
	for {
		n, err := from.Read(b)
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		<-open
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			_ = to.Close()
			return
		}
	}
}

// TestStall: a server that stands still breaks its connections, as if it had ended, and a canceled
// statement does not wait for that.
func TestStall(t *testing.T) {
	s := pgtest.Shared(t)
	_, folder, _ := strings.Cut(s.URL, "host=")
	g, dir := newGate(t, folder)
	const stall = 2 * time.Second
	open := func(stall time.Duration) *sql.DB {
		db, err := pg.OpenStalling("postgres://turn@/postgres?host="+dir, stall)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	db := open(stall)
	ask := func(ctx context.Context) error { return db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) }
	patiently := func() {
		t.Helper()
		if err := pg.Retry(t.Context(), time.Minute, func() error { return ask(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	}
	patiently()
	g.set(true)
	err := ask(t.Context())
	if !pg.Away(err) || turnstone.KindOf(pg.Error("x", "x", err)) != turnstone.KindUnavailable {
		t.Errorf("a server that stands still: %v", err)
	}
	g.set(false)
	patiently()
	slow := open(time.Hour)
	if err := slow.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.set(true)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel) //wait: any moment is right
	err = slow.QueryRowContext(ctx, "SELECT 1").Scan(new(int))
	if !errors.Is(err, context.Canceled) && !errors.Is(err, io.EOF) {
		t.Errorf("a canceled statement: %v", err)
	}
	g.set(false)
}
