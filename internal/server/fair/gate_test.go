package fair

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

var errRoom = errors.New("no room")

// A room has a number of places.
type room struct {
	mu   sync.Mutex
	free int
	log  []string
}

func (r *room) try(name string) func() error {
	return func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.free == 0 {
			return Full(errRoom)
		}
		r.free--
		r.log = append(r.log, name)
		return nil
	}
}

func (r *room) leave(g *Gate) {
	r.mu.Lock()
	r.free++
	r.mu.Unlock()
	g.Wake()
}

func (r *room) order() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, " ")
}

// TestGate: a tenant that comes last to a full room is served second.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := NewGate(Limits{}), &room{}
		var all sync.WaitGroup
		enter := func(tenant string) {
			all.Go(func() {
				if err := g.Enter(t.Context(), tenant, 1, r.try(tenant)); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for range 5 {
			enter("flood")
		}
		enter("quiet")
		for range 6 {
			r.leave(g)
			synctest.Wait()
		}
		all.Wait()
		if got, want := r.order(), "flood quiet flood flood flood flood"; got != want {
			t.Errorf("the order is %s, not %s", got, want)
		}
		if n := g.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}

// TestGateFloods: of 10,000 callers of one tenant those beyond the limit are refused, and another
// tenant's are served.
func TestGateFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := NewGate(Limits{}), &room{}
		var all sync.WaitGroup
		var mu sync.Mutex
		refused := 0
		for range 10_000 {
			all.Go(func() {
				err := g.Enter(t.Context(), "flood", 1, r.try("flood"))
				if turnstone.KindOf(err) == turnstone.KindExhausted {
					mu.Lock()
					refused++
					mu.Unlock()
				} else if err != nil && !errors.Is(err, errRoom) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if refused != 9000 {
			t.Errorf("%d were refused", refused)
		}
		all.Go(func() {
			if err := g.Enter(t.Context(), "quiet", 1, r.try("quiet")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		for range 2 {
			r.leave(g)
			synctest.Wait()
		}
		if got := r.order(); !strings.Contains(got, "quiet") {
			t.Errorf("served: %s", got)
		}
		all.Wait() // the others wait for their minute
	})
}

// TestGateLeaves: one that gives up, before its turn and with it, leaves the turn to others.
func TestGateLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := NewGate(Limits{Wait: time.Hour}), &room{}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				err := g.Enter(ctx, "a", 1, r.try("a"))
				if turnstone.KindOf(err) != turnstone.KindCanceled {
					t.Errorf("%v", err)
				}
			})
		}
		all.Go(func() {
			if err := g.Enter(t.Context(), "b", 1, r.try("b")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		if n := g.Waiting(); n != 1 {
			t.Errorf("%d wait", n)
		}
		r.leave(g)
		all.Wait()
	})
}

// TestGateLate: the wait is bounded, and its error is that of the last try.
func TestGateLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, r := NewGate(Limits{}), &room{}
		began := time.Now()
		err := g.Enter(t.Context(), "a", 1, r.try("a"))
		if !errors.Is(err, errRoom) || errors.As(err, new(full)) || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if n := g.Waiting(); n != 0 {
			t.Errorf("%d wait", n)
		}
	})
}

// TestGateRaces: callers come, leave and wake in any order; each that does not leave is served once.
func TestGateRaces(t *testing.T) {
	g, r := NewGate(Limits{}), &room{free: 2}
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%5 == 0 {
				go cancel()
			}
			tenant := string(rune('a' + i%7))
			err := g.Enter(ctx, tenant, 1+i%3, r.try(tenant))
			switch {
			case err == nil:
				r.leave(g)
			case i%5 != 0:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := g.Waiting(); n != 0 || g.busy {
		t.Errorf("%d wait, busy %v", n, g.busy)
	}
}

// TestGatePanics: a try that panics leaves the turn to the next.
func TestGatePanics(t *testing.T) {
	g := NewGate(Limits{})
	func() {
		defer func() { _ = recover() }()
		_ = g.Enter(t.Context(), "a", 1, func() error { panic("test") })
	}()
	if err := g.Enter(t.Context(), "b", 1, func() error { return nil }); err != nil {
		t.Error(err)
	}
}
