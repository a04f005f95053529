package election_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone/internal/server/election"
	"turnstone.dev/turnstone/internal/server/records"
)

const life = 6 * time.Second

// A database is a lease, as a database keeps it.
type database struct {
	mu    sync.Mutex
	now   records.Term
	until time.Time
	away  bool // calls fail at once
	deaf  bool // calls have no answer
}

var errAway = errors.New("the database is away")

// ask is the way to the database.
func (d *database) ask(ctx context.Context) error {
	d.mu.Lock()
	away, deaf := d.away, d.deaf
	d.mu.Unlock()
	if deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	if away {
		return errAway
	}
	return nil
}

func (d *database) Take(ctx context.Context, holder, address string, life time.Duration) (
	records.Term, bool, error) {
	if err := d.ask(ctx); err != nil {
		return records.Term{}, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if left := time.Until(d.until); left > 0 {
		t := d.now
		t.Left = left
		return t, false, nil
	}
	d.now = records.Term{Fence: d.now.Fence + 1, Holder: holder, Address: address}
	d.until = time.Now().Add(life) //wait: the bubble's clock
	return d.now, true, nil
}

func (d *database) Renew(ctx context.Context, fence int64, life time.Duration) (bool, error) {
	if err := d.ask(ctx); err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now.Fence == fence {
		d.until = time.Now().Add(life) //wait: the bubble's clock
	}
	return d.now.Fence == fence, nil
}

func (d *database) End(ctx context.Context, fence int64) error {
	if err := d.ask(ctx); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now.Fence == fence {
		d.until = time.Time{}
	}
	return nil
}

// left is how long the lease lasts.
func (d *database) left() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Until(d.until)
}

func (d *database) set(f func()) { d.mu.Lock(); defer d.mu.Unlock(); f() }

// leaders are the controllers that lead now.
type leaders struct {
	t     *testing.T
	mu    sync.Mutex
	now   map[string]*election.Term
	terms int
	fail  error // what serving returns at once
}

// run starts a controller, which runs until the function that it returns is called.
func (l *leaders) run(d election.Lease, name string, log *bytes.Buffer) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		election.Run(ctx, election.Options{Lease: d, Holder: name, Life: life,
			Log: slog.New(slog.NewTextHandler(log, nil)),
			Serve: func(ctx context.Context, t *election.Term) error {
				l.mu.Lock()
				if l.terms++; l.fail != nil {
					defer l.mu.Unlock()
					return l.fail
				}
				for other, term := range l.now {
					l.t.Errorf("%s leads, and so does %s: %v", name, other, term.Valid())
				}
				l.now[name] = t
				l.mu.Unlock()
				<-ctx.Done()
				l.mu.Lock()
				delete(l.now, name)
				l.mu.Unlock()
				return nil
			}})
	}()
	return func() { stop(); <-ended }
}

// who returns the name of the controller that leads.
func (l *leaders) who() (names string) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, term := range l.now {
		if names += name; !term.Valid() {
			l.t.Errorf("%s leads after its term", name)
		}
	}
	return names
}

func setup(t *testing.T) (*database, *leaders) {
	return &database{}, &leaders{t: t, now: map[string]*election.Term{}}
}

// TestOneLeads: one of two controllers leads for as long as it renews its lease, and the other one at
// once when it ends.
func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := setup(t)
		var log bytes.Buffer
		endA := l.run(d, "a", &bytes.Buffer{})
		if l.who() != "a" {
			t.Fatalf("%q leads", l.who())
		}
		endB := l.run(d, "b", &log)
		time.Sleep(10 * life)
		if l.who() != "a" || l.terms != 1 {
			t.Errorf("%q leads, in term %d", l.who(), l.terms)
		}
		endA()
		time.Sleep(life / 3)
		if l.who() != "b" {
			t.Errorf("%q leads after the end of a", l.who())
		}
		endB()
		if l.who() != "" || strings.Count(log.String(), "waiting as a standby") != 1 ||
			!strings.Contains(log.String(), "leader=a") {
			t.Errorf("%q leads at the end; the log of b is %s", l.who(), log.String())
		}
	})
}

// TestParted: a leader whose database does not answer, at once or at all, stops before its lease ends,
// and leads again when the database is back.
func TestParted(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, l := setup(t)
			end := l.run(d, "a", &bytes.Buffer{})
			time.Sleep(2*life + life/6)
			d.set(func() { d.away, d.deaf = !deaf, deaf })
			for d.left() > 0 {
				leads := l.who() == "a"
				if left := d.left(); leads && left < life/10 {
					t.Fatalf("it leads %v before the end of its lease", left)
				}
				time.Sleep(life / 100)
			}
			if l.who() != "" {
				t.Error("it leads after its lease")
			}
			d.set(func() { d.away, d.deaf = false, false })
			time.Sleep(2 * life)
			if l.who() != "a" || l.terms != 2 {
				t.Errorf("%q leads, in term %d", l.who(), l.terms)
			}
			end()
		})
	}
}

// TestTaken: a leader that learns of a newer term stops.
func TestTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := setup(t)
		end := l.run(d, "a", &bytes.Buffer{})
		_ = l.who()
		d.set(func() { d.now = records.Term{Fence: 9, Holder: "b"}; d.until = time.Now().Add(life) })
		time.Sleep(life / 2)
		if l.who() != "" {
			t.Errorf("%q leads beside b", l.who())
		}
		time.Sleep(2 * life)
		if l.who() != "a" || d.now.Fence != 10 {
			t.Errorf("%q leads with fence %d", l.who(), d.now.Fence)
		}
		end()
	})
}

// TestCannotServe: a controller that cannot lead gives the lease back, and tries again, not at once.
func TestCannotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := setup(t)
		var log bytes.Buffer
		l.fail = errors.New("no key")
		end := l.run(d, "a", &log)
		time.Sleep(2*life + life/8)
		l.mu.Lock()
		terms := l.terms
		l.mu.Unlock()
		if terms < 2 || terms > 10 || d.left() > 0 {
			t.Errorf("%d terms, and %v left", terms, d.left())
		}
		end()
		if !strings.Contains(log.String(), "no key") {
			t.Errorf("the log is %s", log.String())
		}
	})
}
