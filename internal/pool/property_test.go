package pool

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
)

// TestProperties performs random operations, and verifies after each that no machine is given away
// twice, closed or dead, that claims of a key are served in order, and that no more machines wait
// than the targets permit. At the end all machines are closed.
func TestProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { rapid.Check(inBubble{t}, property) })
}

// inBubble hides the method Deadline of a test, which a bubble does not permit.
type inBubble struct{ testing.TB }

// A run is one random sequence of operations.
type run struct {
	t *rapid.T
	w *world
	p *Pool[*machine]

	mu      sync.Mutex
	number  int
	waiting map[int]*waiter
	served  map[Key]int // the highest number of a claim that was served
	all     []*machine  // that were made
	highest int         // Max of any target so far
}

type waiter struct {
	key    Key
	cancel context.CancelFunc
	done   chan struct{}
}

func property(t *rapid.T) {
	r := &run{t: t, w: newWorld(), waiting: make(map[int]*waiter), served: make(map[Key]int)}
	o := r.w.options()
	o.Makers = rapid.IntRange(1, 4).Draw(t, "makers")
	o.Queue = rapid.IntRange(1, 6).Draw(t, "queue")
	o.Memory = turnstone.Bytes(rapid.IntRange(0, 8).Draw(t, "memory")) * 100
	make := o.Make
	o.Make = func(ctx context.Context, k Key, generation string) (*machine, error) {
		m, err := make(ctx, k, generation)
		if err == nil {
			r.mu.Lock()
			r.all = append(r.all, m)
			r.mu.Unlock()
		}
		return m, err
	}
	r.p = New(o)
	defer r.end()
	keys := rapid.SampledFrom([]Key{keyA, keyB})
	t.Repeat(map[string]func(*rapid.T){
		"target": func(t *rapid.T) {
			most := rapid.IntRange(0, 6).Draw(t, "max")
			r.highest = max(r.highest, most)
			r.p.SetTarget(keys.Draw(t, "key"), Target{Min: rapid.IntRange(0, 6).Draw(t, "min"),
				Max: most, Idle: time.Duration(rapid.IntRange(1, 60).Draw(t, "idle")) * time.Second,
				Generation: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "generation")})
		},
		"forget": func(t *rapid.T) { r.p.Forget(keys.Draw(t, "key")) },
		"claim":  func(t *rapid.T) { r.claim(keys.Draw(t, "key")) },
		"try": func(t *rapid.T) {
			if c, err := r.p.TryClaim(context.Background(), keys.Draw(t, "key")); err == nil {
				r.take(c.Machine)
			}
		},
		"cancel": func(t *rapid.T) {
			for _, w := range r.waiters() {
				if rapid.Bool().Draw(t, "this") {
					w.cancel()
				}
			}
		},
		"kill": func(t *rapid.T) {
			if all := r.machines(); len(all) > 0 {
				rapid.SampledFrom(all).Draw(t, "machine").kill()
			}
		},
		"world": func(t *rapid.T) {
			var fails error
			if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
				fails = errors.New("no machine today")
			}
			r.w.set(time.Duration(rapid.IntRange(0, 3).Draw(t, "takes"))*time.Second, fails)
		},
		"sleep": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
		},
		"yield": func(t *rapid.T) { r.p.Yield(turnstone.Bytes(rapid.IntRange(0, 300).Draw(t, "want"))) },
		"":      func(*rapid.T) { r.verify() },
	})
}

func (r *run) machines() []*machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*machine(nil), r.all...)
}

func (r *run) waiters() (all []*waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.number + 1 {
		if w := r.waiting[n]; w != nil {
			all = append(all, w)
		}
	}
	return all
}

func (r *run) claim(k Key) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waiter{key: k, cancel: cancel, done: make(chan struct{})}
	r.mu.Lock()
	r.number++
	number := r.number
	r.waiting[number] = w
	r.mu.Unlock()
	go func() {
		defer close(w.done)
		c, err := r.p.Claim(ctx, k)
		r.mu.Lock()
		delete(r.waiting, number)
		if err == nil {
			r.served[k] = max(r.served[k], number)
		}
		r.mu.Unlock()
		if err == nil {
			r.take(c.Machine)
		}
	}()
	synctest.Wait() // so that the claims come in order
}

func (r *run) take(m *machine) {
	if err := m.give(); err != nil {
		r.t.Error(err)
	}
}

func (r *run) verify() {
	synctest.Wait() // several claims may be served at the same moment
	r.mu.Lock()
	for n, w := range r.waiting {
		if last := r.served[w.key]; n < last {
			r.t.Errorf("claim %d was served, and claim %d still waits", last, n)
		}
	}
	r.mu.Unlock()
	for _, s := range r.p.Stats() {
		if n := s.Ready + s.Making; n > s.Target.Max && s.Making == 0 || n > r.highest {
			r.t.Fatalf("%d machines wait or are made: %+v", n, s)
		}
	}
}

func (r *run) end() {
	for _, w := range r.waiters() {
		w.cancel()
		<-w.done
	}
	if err := r.p.Close(); err != nil {
		r.t.Error(err)
	}
	if n := r.p.Memory(); n != 0 {
		r.t.Errorf("the pool counts %d bytes at its end", n)
	}
	for _, m := range r.machines() {
		if m.closed+m.given != 1 {
			r.t.Errorf("machine %d was given away %d times and closed %d times", m.number, m.given, m.closed)
		}
	}
}
