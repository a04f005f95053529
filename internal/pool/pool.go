// Package pool keeps machines that are ready before somebody asks for them, and gives each away
// once. It does not know what a machine is.
//
// A Key says which machines can take each other's place, and a Target how many of them wait. The
// pool makes machines in the background, at most Options.Makers at a time. A claim gets a machine
// that waits, or queues for the next one that is made: first come, first served. A machine is never
// taken back. A failed Make fails the claim that has waited longest, so that no claim waits for a
// machine that cannot be made.
//
// All times are monotonic: a change of the computer's clock has no effect.
package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A Key says which machines can take each other's place.
type Key struct {
	Tenant string // who may claim them
	Source string // what they start from: a template, or a state
	Shape  turnstone.Shape
	Policy string // a digest of what else cannot be changed in a machine that runs
}

// A Target says how many machines of a Key the pool keeps.
type Target struct {
	Min int // that wait for a claim
	Max int // that wait or are being made: more than Min are made for claims that queue
	// Idle is how long a machine beyond Min waits before it is closed; 0: Options.Idle.
	Idle time.Duration
	// Generation is a digest of what the machines are made from, such as the template's image, the
	// agent and the network's policy. Machines of another generation are closed, not given away.
	Generation string
}

// A Machine is a machine that waits. Its methods are called by one goroutine at a time.
type Machine interface {
	// Check reports why the machine can no longer be given away; nil: it can.
	Check(ctx context.Context) error
	// Close ends the machine and frees its resources.
	Close() error
}

// Options are the settings of a Pool. A zero number selects its default.
type Options[M Machine] struct {
	// Make makes a machine of a key, for the generation of its target. It runs in a goroutine of
	// the pool, and ends soon after ctx.
	Make func(ctx context.Context, k Key, generation string) (M, error)
	// Room reports whether the host has room for a machine that no claim waits for, beside the
	// memory that machines of the pool have; nil: it has. It is called while the pool is locked, and
	// must not call the pool.
	Room func(k Key, pool turnstone.Bytes) bool
	// Memory bounds the sum of the shapes' memory of machines that wait or are made; 0: no bound.
	Memory turnstone.Bytes
	// Makers is the number of machines that are made at the same time. Default: 2.
	Makers int
	// Queue is the number of claims of one key that may wait. Default: 1,024.
	Queue int
	// Idle is the Idle of targets that name none. Default: 10 minutes.
	Idle time.Duration
	// Every is the time between two health checks of a machine, and CheckTime bounds one check.
	// Defaults: 15 seconds, 2 seconds.
	Every, CheckTime time.Duration
	// Calm is how long after a claim the pool makes no machine, while half of Min or more wait: what a
	// claim is for begins at once, and a make would take its processors. Default: no time.
	Calm time.Duration
	// Since returns the time since an arbitrary moment, for tests; nil: a monotonic clock.
	Since func() time.Duration
	// Event is called for what an operator should know, outside of the pool's lock; nil: nothing.
	Event func(Event)
}

// An Event is something that happened to a machine of the pool.
type Event struct {
	Kind EventKind
	Key  Key
	Err  error // of a failed Make, Check or Close
}

// An EventKind is what happened.
type EventKind string

// The kinds of events.
const (
	MakeFailed  EventKind = "make failed"  // a machine could not be made
	CheckFailed EventKind = "check failed" // a machine died, or does not answer; it is closed
	CloseFailed EventKind = "close failed" // a machine could not be closed
)

const (
	defaultMakers = 2
	defaultQueue  = 1024
	defaultIdle   = 10 * time.Minute
	defaultEvery  = 15 * time.Second
	defaultCheck  = 2 * time.Second

	// firstPause follows a failed Make without a claim that waits, and doubles up to lastPause.
	firstPause = time.Second
	lastPause  = time.Minute
)

// A Pool keeps machines. Its methods are safe for concurrent use.
type Pool[M Machine] struct {
	o      Options[M]
	ctx    context.Context // of makes and checks
	cancel context.CancelFunc
	wg     sync.WaitGroup // makes, checks, closings

	mu      sync.Mutex
	closed  bool
	shelves map[Key]*shelf[M]
	order   int64           // of the last claim
	making  int             // machines of all keys
	memory  turnstone.Bytes // of machines that wait or are made
	looked  bool            // a look is under way
	ended   chan struct{}   // closed with the pool
}

// A shelf is the machines of one key.
type shelf[M Machine] struct {
	key     Key
	target  Target
	touched time.Duration // the last claim, or the last target
	calm    time.Duration // until when makes may wait
	ready   []*entry[M]   // oldest first
	queue   []*claim[M]   // oldest first
	making  int
	checked int           // machines that claims and looks hold
	looked  int           // those of looks: they wait, unless they are dead
	pause   time.Duration // after the last failed Make; 0: none
	retry   time.Duration // when the pause ends
	gone    bool          // the target was removed
	counts  Counts
}

// An entry is a machine that waits.
type entry[M Machine] struct {
	m          M
	generation string
	since      time.Duration // it waits
	checked    time.Duration // the last check
	looked     bool          // a look holds it
}

// A claim waits for a machine.
type claim[M Machine] struct {
	number int64
	result chan result[M] // takes one result
}

type result[M Machine] struct {
	e   *entry[M]
	err error
}

// New returns a pool without targets. Close it.
func New[M Machine](o Options[M]) *Pool[M] {
	o.Makers = cmp.Or(o.Makers, defaultMakers)
	o.Queue = cmp.Or(o.Queue, defaultQueue)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	o.Every = cmp.Or(o.Every, defaultEvery)
	o.CheckTime = cmp.Or(o.CheckTime, defaultCheck)
	if o.Since == nil {
		began := time.Now()
		o.Since = func() time.Duration { return time.Since(began) }
	}
	if o.Event == nil {
		o.Event = func(Event) {}
	}
	p := &Pool[M]{o: o, shelves: make(map[Key]*shelf[M]), ended: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.watch)
	return p
}

// SetTarget sets how many machines of k wait. Machines of another generation than t's, and those
// beyond t.Max, are closed. A target with Max 0 is no target: see Forget.
func (p *Pool[M]) SetTarget(k Key, t Target) {
	if t.Max <= 0 {
		p.Forget(k)
		return
	}
	t.Min = min(max(t.Min, 0), t.Max)
	t.Idle = cmp.Or(t.Idle, p.o.Idle)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	s := p.shelves[k]
	if s == nil {
		s = &shelf[M]{key: k}
		p.shelves[k] = s
	}
	if s.target.Generation != t.Generation {
		s.pause, s.retry = 0, 0
	}
	s.target, s.gone, s.touched = t, false, p.o.Since()
	s.ready = slices.DeleteFunc(s.ready, func(e *entry[M]) bool {
		old := e.generation != t.Generation
		if old {
			s.counts.Drained++
			p.discard(s, e)
		}
		return old
	})
	for len(s.ready)+s.checked > t.Max && len(s.ready) > 0 {
		s.counts.Drained++
		p.discard(s, s.ready[0])
		s.ready = s.ready[1:]
	}
	p.fill()
}

// Forget removes the target of k and closes its machines. Claims that wait fail with an error of
// kind Unavailable.
func (p *Pool[M]) Forget(k Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.shelves[k]; s != nil {
		p.forget(s)
		p.fill()
	}
}

func (p *Pool[M]) forget(s *shelf[M]) {
	s.gone = true
	for _, e := range s.ready {
		s.counts.Drained++
		p.discard(s, e)
	}
	s.ready = nil
	for _, c := range s.queue {
		c.result <- result[M]{err: turnstone.Errorf("pool.claim", turnstone.KindUnavailable,
			"the pool", "no longer keeps such machines")}
	}
	s.queue = nil
	p.drop(s)
}

// drop removes a shelf that nothing needs. The caller holds p.mu.
func (p *Pool[M]) drop(s *shelf[M]) {
	if s.gone && s.making == 0 && s.checked == 0 && p.shelves[s.key] == s {
		delete(p.shelves, s.key)
	}
}

// discard closes a machine that nobody gets. The caller holds p.mu.
func (p *Pool[M]) discard(s *shelf[M], e *entry[M]) {
	p.memory -= s.key.Shape.Memory
	p.closeLater(s.key, e.m)
}

func (p *Pool[M]) closeLater(k Key, m M) {
	p.wg.Go(func() { p.close(k, m) })
}

func (p *Pool[M]) close(k Key, m M) {
	if err := m.Close(); err != nil {
		p.o.Event(Event{Kind: CloseFailed, Key: k, Err: err})
	}
}

// Yield closes machines that wait, the least recently used first, until their shapes' memory is at
// least want, or none is left. It returns their memory. It does not wait for their ends.
func (p *Pool[M]) Yield(want turnstone.Bytes) (freed turnstone.Bytes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for freed < want {
		s := p.oldest(p.o.Since() + 1)
		if s == nil {
			break
		}
		freed += s.key.Shape.Memory
		p.evict(s)
		// so that the pool does not make at once what the host has no room for
		s.pause, s.retry = firstPause, p.o.Since()+firstPause
	}
	return freed
}

// oldest returns the shelf with machines that was used least recently, before a moment.
func (p *Pool[M]) oldest(before time.Duration) (found *shelf[M]) {
	for _, s := range p.shelves {
		if len(s.ready) > 0 && s.touched < before && (found == nil || s.touched < found.touched) {
			found = s
		}
	}
	return found
}

func (p *Pool[M]) evict(s *shelf[M]) {
	s.counts.Evicted++
	p.discard(s, s.ready[0])
	s.ready = s.ready[1:]
}

// Drain ends the making of machines, closes those that wait, and waits for that or ctx's end. Claims
// fail from now on with an error of kind Unavailable. The error is that of ctx.
func (p *Pool[M]) Drain(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.ended)
		p.cancel()
		for _, s := range p.shelves {
			p.forget(s)
		}
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return turnstone.NewError("pool.drain", turnstone.KindTimeout, "the pool",
			errors.New("some machines have not ended yet"))
	}
}

// Close is Drain without a bound in time.
func (p *Pool[M]) Close() error { return p.Drain(context.Background()) }
