package fair

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"turnstone.dev/turnstone"
)

// A desk notes in which order calls are worked on, and how many at one time.
type desk struct {
	t      *testing.T
	s      *Shares
	all    sync.WaitGroup
	finish chan bool // ends the work of one call

	mu    sync.Mutex
	order []string
	now   map[string]int
}

func newDesk(t *testing.T, processors int, l Limits) *desk {
	return &desk{t: t, s: NewShares(processors, l), finish: make(chan bool), now: map[string]int{}}
}

// call begins a call, which ends with an element of finish.
func (d *desk) call(tenant string) {
	d.all.Go(func() {
		_, h, err := d.s.Enter(d.t.Context(), tenant)
		if err != nil {
			d.t.Error(err)
			return
		}
		defer h.Leave()
		d.count(tenant, 1)
		<-d.finish
		d.count(tenant, -1)
	})
	synctest.Wait()
}

func (d *desk) count(tenant string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now[tenant] += n
	if n > 0 {
		d.order = append(d.order, tenant)
	}
}

func (d *desk) working(tenant string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now[tenant]
}

// TestShares: a tenant alone has all shares; when another one calls, its calls are worked on at
// once after those that run, and the first one gets no more than its part.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 2, Limits{})
		for range 10 {
			d.call("flood")
		}
		if n := d.working("flood"); n != 4 {
			t.Errorf("%d calls of the only tenant are worked on", n)
		}
		for i := range 3 {
			d.call("quiet")
			for range 4 { // of those that worked before
				if d.working("quiet") > 0 {
					break
				}
				d.finish <- true
				synctest.Wait()
			}
			if d.working("quiet") != 1 {
				t.Fatalf("call %d of the quiet tenant waits, with %d of the flood", i, d.working("flood"))
			}
			for d.working("quiet") > 0 {
				d.finish <- true
				synctest.Wait()
			}
			if n := d.working("flood"); n > 1 {
				t.Errorf("%d calls of the flood are worked on while the other tenant calls", n)
			}
		}
		close(d.finish)
		d.all.Wait()
		if d.s.sum != 0 || len(d.s.held) != 0 || d.s.queue.Len() != 0 {
			t.Errorf("%d shares are held, by %v", d.s.sum, d.s.held)
		}
	})
}

// TestRest: calls that rest leave their shares to others, and get one again; calls in which several
// parts rest have one at most.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShares(1, Limits{})
		var all sync.WaitGroup
		var work, most atomic.Int64
		wake := make(chan bool)
		for i := range 20 {
			all.Go(func() {
				ctx, h, err := s.Enter(t.Context(), fmt.Sprint(i%3))
				if err != nil {
					t.Error(err)
					return
				}
				defer h.Leave()
				var parts sync.WaitGroup
				for range 2 {
					parts.Go(func() { Rest(ctx, func() { Rest(ctx, func() { <-wake }) }) })
				}
				Rest(ctx, parts.Wait)
				most.Store(max(most.Load(), work.Add(1)))
				time.Sleep(time.Millisecond)
				work.Add(-1)
			})
		}
		synctest.Wait() // all rest, though there are two shares
		if s.sum != 0 {
			t.Errorf("%d shares are held while all rest", s.sum)
		}
		close(wake)
		all.Wait()
		if s.sum != 0 || most.Load() > 2 || most.Load() < 1 {
			t.Errorf("%d shares are held, and %d calls were worked on at one time", s.sum, most.Load())
		}
	})
	Rest(t.Context(), func() {}) // without a share
}

// TestSharesEnd: calls beyond the limit are refused, those that wait too long or give up end, and
// none of them takes a share with it.
func TestSharesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShares(1, Limits{Each: 2, Wait: time.Minute})
		var held []*Share
		for range 2 {
			_, h, err := s.Enter(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, h)
		}
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, _, err := s.Enter(ctx, "a")
				errs <- err
			}()
		}
		synctest.Wait()
		if _, _, err := s.Enter(ctx, "a"); turnstone.KindOf(err) != turnstone.KindExhausted {
			t.Errorf("a third call waits: %v", err)
		}
		if _, _, err := s.Enter(ctx, "b"); turnstone.KindOf(err) != turnstone.KindExhausted {
			t.Errorf("after the longest wait: %v", err)
		}
		for range 2 {
			if err := <-errs; turnstone.KindOf(err) != turnstone.KindExhausted {
				t.Errorf("after the longest wait: %v", err)
			}
		}
		go func() {
			_, _, err := s.Enter(ctx, "a")
			errs <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-errs; turnstone.KindOf(err) != turnstone.KindCanceled {
			t.Errorf("a call that gave up: %v", err)
		}
		held[0].Leave()
		held[0].Leave()
		held[1].Leave()
		if s.sum != 0 || s.queue.Len() != 0 {
			t.Errorf("%d shares are held, %d calls wait", s.sum, s.queue.Len())
		}
	})
}

// TestMutex: one holder at a time, and a tenant that comes last is second.
func TestMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Mutex
		var all sync.WaitGroup
		var order []string
		m.Lock("flood")
		for i := range 4 {
			tenant := []string{"flood", "flood", "flood", "quiet"}[i]
			all.Go(func() {
				m.Lock(tenant)
				defer m.Unlock()
				order = append(order, tenant)
				time.Sleep(time.Millisecond)
			})
			synctest.Wait()
		}
		m.Unlock()
		all.Wait()
		if got := fmt.Sprint(order); got != "[flood quiet flood flood]" {
			t.Errorf("the order is %s", got)
		}
		m.Lock("again")
		m.Unlock()
	})
}

// TestMutexRaces: the lock excludes.
func TestMutexRaces(t *testing.T) {
	var m Mutex
	var all sync.WaitGroup
	n := 0
	for i := range 50 {
		all.Go(func() {
			for range 100 {
				m.Lock(fmt.Sprint(i % 5))
				n++
				m.Unlock()
			}
		})
	}
	all.Wait()
	if n != 5000 {
		t.Errorf("%d, not 5000", n)
	}
}
