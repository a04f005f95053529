package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

// A world makes machines, and notes what happens to them.
type world struct {
	mu     sync.Mutex
	made   int
	alive  int         // made and not closed
	most   int         // of alive, in all
	ready  map[Key]int // made, and neither closed nor claimed
	events []Event

	takes time.Duration // to make a machine
	fails error         // of the next makes

	checks time.Duration // that each check takes
}

type machine struct {
	w      *world
	number int
	key    Key
	from   string // the generation

	mu     sync.Mutex
	dead   bool
	hangs  bool
	closed int
	given  int
}

func newWorld() *world { return &world{ready: make(map[Key]int)} }

func (w *world) make(ctx context.Context, k Key, generation string) (*machine, error) {
	w.mu.Lock()
	takes, err := w.takes, w.fails
	w.mu.Unlock()
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made++
	w.alive++
	w.ready[k]++
	w.most = max(w.most, w.ready[k])
	return &machine{w: w, number: w.made, key: k, from: generation}, nil
}

func (w *world) event(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *world) living() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.alive
}

func (w *world) set(takes time.Duration, fails error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takes, w.fails = takes, fails
}

func (m *machine) Check(ctx context.Context) error {
	m.mu.Lock()
	dead, hangs := m.dead, m.hangs
	m.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if dead {
		return errors.New("dead")
	}
	time.Sleep(m.w.checks)
	return nil
}

func (m *machine) Close() error {
	m.mu.Lock()
	m.closed++
	first := m.closed == 1
	given := m.given > 0
	m.mu.Unlock()
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if first {
		m.w.alive--
		if !given {
			m.w.ready[m.key]--
		}
	}
	return nil
}

// give notes that a claim has the machine.
func (m *machine) give() error {
	m.mu.Lock()
	m.given++
	given, closed := m.given, m.closed
	m.mu.Unlock()
	m.w.mu.Lock()
	m.w.ready[m.key]--
	m.w.mu.Unlock()
	switch {
	case given > 1:
		return fmt.Errorf("machine %d was given away %d times", m.number, given)
	case closed > 0:
		return fmt.Errorf("machine %d was given away closed", m.number)
	}
	return nil
}

func (m *machine) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

var keyA = Key{Tenant: "local", Source: "base", Shape: turnstone.Shape{CPUs: 1, Memory: 100}}
var keyB = Key{Tenant: "local", Source: "python", Shape: turnstone.Shape{CPUs: 1, Memory: 100}}

func (w *world) options() Options[*machine] {
	return Options[*machine]{Make: w.make, Event: w.event, Every: 10 * time.Second,
		Idle: time.Minute, CheckTime: time.Second}
}

// in runs f in a bubble with a pool, and verifies that nothing remains.
func in(t *testing.T, change func(*world, *Options[*machine]), f func(*testing.T, *world,
	*Pool[*machine])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		o := w.options()
		if change != nil {
			change(w, &o)
		}
		p := New(o)
		defer func() { // also after a failure: a bubble waits for its goroutines
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if p.Memory() != 0 {
				t.Errorf("the pool counts %d bytes at its end", p.Memory())
			}
		}()
		f(t, w, p)
	})
}

func claimOne(t *testing.T, p *Pool[*machine], k Key) *machine {
	t.Helper()
	c, err := p.Claim(t.Context(), k)
	if err == nil {
		err = c.Machine.give()
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.Machine
}

func stats(t *testing.T, p *Pool[*machine], k Key) Stats {
	t.Helper()
	for _, s := range p.Stats() {
		if s.Key == k {
			return s
		}
	}
	t.Fatalf("no stats of %v", k)
	return Stats{}
}

func TestFillsAndRefills(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 3, Max: 5})
		synctest.Wait()
		if s := stats(t, p, keyA); s.Ready != 3 || s.Memory != 300 {
			t.Fatalf("%+v", s)
		}
		m := claimOne(t, p, keyA)
		synctest.Wait()
		if s := stats(t, p, keyA); s.Ready != 3 || s.Claimed != 1 || s.Made != 4 {
			t.Errorf("after a claim: %+v", s)
		}
		_ = m.Close()
	})
}

// TestCalm: after a claim the pool makes no machine for a while, unless fewer than half wait.
func TestCalm(t *testing.T) {
	calm := func(_ *world, o *Options[*machine]) { o.Calm = 200 * time.Millisecond }
	in(t, calm, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 4, Max: 5})
		synctest.Wait()
		want := func(ready, made int) {
			t.Helper()
			synctest.Wait()
			if s := stats(t, p, keyA); s.Ready != ready || int(s.Made) != made {
				t.Errorf("%d are ready and %d made, not %d and %d", s.Ready, s.Made, ready, made)
			}
		}
		want(4, 4) // a new target is no claim
		var all []*machine
		claim := func() { all = append(all, claimOne(t, p, keyA)) }
		claim()
		want(3, 4)
		claim()
		want(2, 4)
		claim() // fewer than half: one is made at once
		want(2, 5)
		//wait: the bubble's clock
		time.Sleep(2 * time.Second) // a look, after the calm
		want(4, 7)
		for _, m := range all {
			_ = m.Close()
		}
	})
}

func TestUnknownKey(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world, p *Pool[*machine]) {
		_, err := p.Claim(t.Context(), keyA)
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("%v", err)
		}
		p.SetTarget(keyA, Target{Min: 1, Max: 1})
		p.Forget(keyA)
		if _, err := p.Claim(t.Context(), keyA); err == nil {
			t.Error("a claim of a key that was forgotten was served")
		}
	})
}

// TestBurst is 200 claims of a pool of 20: all are served, in order.
func TestBurst(t *testing.T) {
	in(t, func(w *world, o *Options[*machine]) { w.takes = 50 * time.Millisecond },
		func(t *testing.T, w *world, p *Pool[*machine]) {
			p.SetTarget(keyA, Target{Min: 20, Max: 20})
			time.Sleep(10 * time.Second) //wait: the bubble's clock
			began := time.Now()
			var served [200]time.Duration // two may be served at the same moment
			var wg sync.WaitGroup
			for i := range served {
				wg.Go(func() {
					c, err := p.Claim(t.Context(), keyA)
					if err == nil {
						err = c.Machine.give()
					}
					if err != nil {
						t.Error(err)
						return
					}
					served[i] = time.Since(began)
					_ = c.Machine.Close()
				})
				synctest.Wait() // so that the claims come in order
			}
			wg.Wait()
			for i := range served[1:] {
				if served[i] > served[i+1] {
					t.Errorf("claim %d was served before %d", i+1, i)
				}
			}
			if s := stats(t, p, keyA); s.Claimed != 200 || w.most > 20 {
				t.Errorf("%d claims were served, and %d machines waited", s.Claimed, w.most)
			}
		})
}

func TestDeadMachinesAreNotGivenAway(t *testing.T) {
	in(t, func(w *world, o *Options[*machine]) { o.Makers = 1 },
		func(t *testing.T, w *world, p *Pool[*machine]) {
			p.SetTarget(keyA, Target{Min: 3, Max: 3})
			synctest.Wait()
			p.mu.Lock()
			for _, e := range p.shelves[keyA].ready[1:] {
				e.m.kill()
			}
			p.shelves[keyA].ready[1].m.hangs = true
			p.mu.Unlock()
			m := claimOne(t, p, keyA)
			if m.dead || m.hangs {
				t.Error("a dead machine was given away")
			}
			synctest.Wait()
			if s := stats(t, p, keyA); s.Died != 2 || s.Ready != 3 {
				t.Errorf("%+v", s)
			}
			if len(w.events) != 2 || w.events[0].Kind != CheckFailed {
				t.Errorf("%+v", w.events)
			}
			_ = m.Close()
		})
}

func TestHealthChecks(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 2, Max: 2})
		synctest.Wait()
		p.mu.Lock()
		p.shelves[keyA].ready[0].m.kill()
		p.mu.Unlock()
		time.Sleep(12 * time.Second) //wait: the bubble's clock
		synctest.Wait()
		if s := stats(t, p, keyA); s.Died != 1 || s.Ready != 2 || w.living() != 2 {
			t.Errorf("%+v, %d alive", s, w.living())
		}
	})
}

// TestMadeDuringHealthCheck: a machine that is being checked is one that waits: none is made in its place
// when another one has been made meanwhile.
func TestMadeDuringHealthCheck(t *testing.T) {
	in(t, func(w *world, _ *Options[*machine]) {
		w.takes, w.checks = time.Second, 500*time.Millisecond
	}, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 2, Max: 3})
		time.Sleep(10200 * time.Millisecond) //wait: the bubble's clock; at 11 s a look checks what was made after 1 s
		m := claimOne(t, p, keyA)            // in its place one is made until 11.2 s
		time.Sleep(5 * time.Second)          //wait: the bubble's clock
		synctest.Wait()
		if s := stats(t, p, keyA); s.Ready != 2 || s.Made != 3 || s.Died != 0 {
			t.Errorf("%+v", s)
		}
		_ = m.Close()
	})
}

func TestGenerations(t *testing.T) {
	in(t, func(w *world, o *Options[*machine]) { w.takes = time.Second },
		func(t *testing.T, w *world, p *Pool[*machine]) {
			p.SetTarget(keyA, Target{Min: 3, Max: 3, Generation: "old"})
			time.Sleep(1500 * time.Millisecond) //wait: the bubble's clock; two are ready, one is being made
			p.SetTarget(keyA, Target{Min: 3, Max: 3, Generation: "new"})
			if m := claimOne(t, p, keyA); m.from != "new" {
				t.Errorf("a machine of generation %s was given away", m.from)
			}
			time.Sleep(10 * time.Second) //wait: the bubble's clock
			synctest.Wait()
			if s := stats(t, p, keyA); s.Drained != 3 || s.Ready != 3 || w.living() != 4 {
				t.Errorf("%+v, %d alive", s, w.living())
			}
		})
}

func TestIdleMachinesEnd(t *testing.T) {
	in(t, nil, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 4, Max: 4})
		synctest.Wait()
		p.SetTarget(keyA, Target{Min: 1, Max: 4, Idle: 30 * time.Second})
		time.Sleep(20 * time.Second) //wait: the bubble's clock
		if s := stats(t, p, keyA); s.Ready != 4 {
			t.Fatalf("%+v", s)
		}
		time.Sleep(20 * time.Second) //wait: the bubble's clock
		synctest.Wait()
		if s := stats(t, p, keyA); s.Ready != 1 || s.Expired != 3 {
			t.Errorf("%+v", s)
		}
	})
}

func TestFailedMakes(t *testing.T) {
	full := turnstone.Errorf("make", turnstone.KindExhausted, "disk", "is full")
	in(t, func(w *world, o *Options[*machine]) { w.fails = full },
		func(t *testing.T, w *world, p *Pool[*machine]) {
			p.SetTarget(keyA, Target{Min: 2, Max: 4})
			for range 3 { // each claim has the reason, and none waits for ever
				if _, err := p.Claim(t.Context(), keyA); !errors.Is(err, full) {
					t.Errorf("%v", err)
				}
			}
			time.Sleep(10 * time.Minute)
			if n := stats(t, p, keyA).Failed; n > 60 {
				t.Errorf("%d makes within ten minutes", n)
			}
			w.set(0, nil)
			time.Sleep(2 * time.Minute)
			if s := stats(t, p, keyA); s.Ready != 2 {
				t.Errorf("after the disk had room again: %+v", s)
			}
		})
}

func TestQueueIsBounded(t *testing.T) {
	in(t, func(w *world, o *Options[*machine]) { o.Queue, w.takes = 5, time.Hour },
		func(t *testing.T, w *world, p *Pool[*machine]) {
			p.SetTarget(keyA, Target{Max: 1})
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					_, err := p.Claim(ctx, keyA)
					if turnstone.KindOf(err) != turnstone.KindCanceled {
						t.Errorf("%v", err)
					}
				})
			}
			synctest.Wait()
			_, err := p.Claim(ctx, keyA)
			if turnstone.KindOf(err) != turnstone.KindExhausted {
				t.Errorf("%v", err)
			}
			if _, err := p.TryClaim(ctx, keyA); turnstone.KindOf(err) != turnstone.KindExhausted {
				t.Errorf("%v", err)
			}
			cancel()
			wg.Wait()
			if s := stats(t, p, keyA); s.Waiting != 0 || s.Left != 5 || s.Refused != 1 || s.Missed != 1 {
				t.Errorf("%+v", s)
			}
		})
}

// TestClockJumps moves the pool's clock by an hour in both directions while claims wait.
func TestClockJumps(t *testing.T) {
	var mu sync.Mutex
	var jump time.Duration
	in(t, func(w *world, o *Options[*machine]) {
		began := time.Now()
		w.takes = 5 * time.Second
		o.Since = func() time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Since(began) + jump
		}
	}, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 2, Max: 4})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { claimOne(t, p, keyA) })
		}
		for _, by := range []time.Duration{time.Hour, -2 * time.Hour, time.Hour} {
			time.Sleep(3 * time.Second)
			mu.Lock()
			jump += by
			mu.Unlock()
		}
		wg.Wait()
		time.Sleep(30 * time.Second) //wait: the bubble's clock
		synctest.Wait()
		if s := stats(t, p, keyA); s.Claimed != 10 || s.Ready != 2 || s.Left != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMemoryBudget(t *testing.T) {
	in(t, func(w *world, o *Options[*machine]) { o.Memory = 300 },
		func(t *testing.T, w *world, p *Pool[*machine]) {
			p.SetTarget(keyA, Target{Min: 5, Max: 5})
			time.Sleep(time.Second) //wait: the bubble's clock
			if s := stats(t, p, keyA); s.Ready != 3 {
				t.Fatalf("%+v", s)
			}
			p.SetTarget(keyB, Target{Min: 2, Max: 2}) // later, so it takes the place of others
			time.Sleep(time.Second)                   //wait: the bubble's clock
			a, b := stats(t, p, keyA), stats(t, p, keyB)
			if a.Ready != 1 || a.Evicted != 2 || b.Ready != 2 || p.Memory() != 300 {
				t.Errorf("%+v\n%+v", a, b)
			}
			claimOne(t, p, keyA)
			time.Sleep(time.Second) //wait: the bubble's clock
			if a, b := stats(t, p, keyA), stats(t, p, keyB); a.Ready != 3 || b.Ready != 0 {
				t.Errorf("the key that was used last has fewer machines:\n%+v\n%+v", a, b)
			}
			if freed := p.Yield(150); freed != 200 {
				t.Errorf("%d bytes freed", freed)
			}
		})
}

func TestRoom(t *testing.T) {
	var mu sync.Mutex
	room := false
	in(t, func(w *world, o *Options[*machine]) {
		o.Room = func(Key, turnstone.Bytes) bool {
			mu.Lock()
			defer mu.Unlock()
			return room
		}
	}, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 2, Max: 2})
		time.Sleep(5 * time.Second) //wait: the bubble's clock
		if s := stats(t, p, keyA); s.Ready != 0 {
			t.Errorf("%+v", s)
		}
		claimOne(t, p, keyA) // a claim has room of its own
		mu.Lock()
		room = true
		mu.Unlock()
		time.Sleep(5 * time.Second) //wait: the bubble's clock
		if s := stats(t, p, keyA); s.Ready != 2 {
			t.Errorf("%+v", s)
		}
	})
}

func TestDrainWaits(t *testing.T) {
	in(t, func(w *world, o *Options[*machine]) {
		make := o.Make
		o.Make = func(ctx context.Context, k Key, generation string) (*machine, error) {
			m, err := make(ctx, k, generation)
			if err == nil {
				time.Sleep(time.Minute) // does not notice that ctx ends
			}
			return m, err
		}
	}, func(t *testing.T, w *world, p *Pool[*machine]) {
		p.SetTarget(keyA, Target{Min: 2, Max: 2})
		waited := make(chan error, 1)
		go func() {
			_, err := p.Claim(t.Context(), keyA)
			waited <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) //wait: the bubble's clock
		defer cancel()
		if err := p.Drain(ctx); turnstone.KindOf(err) != turnstone.KindTimeout {
			t.Errorf("%v", err)
		}
		if err := <-waited; turnstone.KindOf(err) != turnstone.KindUnavailable {
			t.Errorf("%v", err)
		}
		if err := p.Drain(t.Context()); err != nil || w.living() != 0 {
			t.Errorf("%v, and %d machines live", err, w.living())
		}
	})
}
