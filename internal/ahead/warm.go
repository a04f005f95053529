// Package ahead keeps machines that wait for the next turn of a session, which then starts at once.
// It does not know what a machine is.
//
// When a turn ends, its machine's successor is offered: a Shelf makes it in the background, and
// gives it to one turn of the same client, session, state and kind. A Shelf is bounded in number and
// memory; the least recently offered machine is closed first. None is made twice.
package ahead

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// A Machine waits for a turn. Its methods are safe for concurrent use.
type Machine interface {
	// Check reports why no turn can get the machine any longer; nil: one can.
	Check(ctx context.Context) error
	// Close ends the machine and frees its resources.
	Close() error
}

// A Key says which machine a turn can get.
type Key struct {
	Session turnstone.SessionID
	State   turnstone.Digest // of the turn that it follows
	Kind    turnstone.Digest // of all else that cannot be changed in a machine that runs
}

// An Offer describes a machine to make.
type Offer struct {
	Key
	Branch  string // of the session: a later offer for it replaces this one
	Machine turnstone.Machine
	// Make makes the machine. It runs once, in a goroutine, and ends soon after ctx.
	Make func(ctx context.Context) (Machine, error)
}

// Options are the bounds of a Shelf. A zero field selects its default, except Turns and Memory.
type Options struct {
	Turns  int             // machines that wait or are made; 0: none
	Memory turnstone.Bytes // of their shapes; 0: no bound
	Makers int             // that are made at the same time. Default: 1
	Idle   time.Duration   // how long a machine waits. Default: 10 minutes
	// Every is the time between two checks of a machine, and CheckTime bounds one. Defaults: 3
	// seconds, 2 seconds.
	Every, CheckTime time.Duration
	// Failed is called with the error of a Make; nil: nothing.
	Failed func(tenant string, err error)
}

const (
	defaultIdle      = 10 * time.Minute
	defaultEvery     = 3 * time.Second
	defaultCheckTime = 2 * time.Second
)

// A Shelf keeps machines. Its methods are safe for concurrent use; those of nil keep none.
type Shelf struct {
	o      Options
	ctx    context.Context // of makes and checks
	cancel context.CancelFunc
	makers chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	room    func(m turnstone.Machine, waiting turnstone.Bytes) bool // nil: there is room
	entries []*entry                                                // the least recently offered first
	memory  turnstone.Bytes
	counts  Counts
}

// owner says who can get a machine.
type owner struct{ tenant, client string }

type entry struct {
	Offer
	owner  owner
	since  time.Time // it waits; on the monotonic clock
	cancel context.CancelFunc
	made   chan struct{} // closed when Make has returned, or will not be called

	// Under the shelf's mu:
	m       Machine // nil: not made yet
	begun   bool    // Make was called
	claimed bool    // a turn waits for it
	gone    bool    // it is not on the shelf
}

// Counts are numbers of events since the shelf began.
type Counts struct {
	Hits   int64 // turns that got a machine
	Misses int64 // turns that found none
	Lost   int64 // machines that a turn got, and could not use
	Made   int64

	Failed  int64 // machines that could not be made
	Changed int64 // closed because another turn ended, or what they were made from is another
	Died    int64 // closed because they had ended, or did not answer
	Idle    int64 // closed because they waited for too long
	Evicted int64 // closed because of the shelf's bounds, or because memory was needed
}

// Stats are the state of a shelf.
type Stats struct {
	Ready  int // machines that wait
	Making int // that are made, or will be
	Memory turnstone.Bytes
	Counts
}

// New returns a shelf, or nil if it may have no machine. Close it.
func New(o Options) *Shelf {
	if o.Turns <= 0 {
		return nil
	}
	o.Makers = cmp.Or(o.Makers, 1)
	o.Idle = cmp.Or(o.Idle, defaultIdle)
	o.Every = cmp.Or(o.Every, defaultEvery)
	o.CheckTime = cmp.Or(o.CheckTime, defaultCheckTime)
	if o.Failed == nil {
		o.Failed = func(string, error) {}
	}
	s := &Shelf{o: o, makers: make(chan struct{}, o.Makers)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.watch)
	return s
}

// Within makes the shelf ask before it makes a machine whether the host has room for it, beside the
// memory of the shelf's machines. room may ask the shelf.
func (s *Shelf) Within(room func(m turnstone.Machine, waiting turnstone.Bytes) bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.room = room
}

// offer puts a machine on the shelf, and begins to make it.
func (s *Shelf) offer(by owner, o Offer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range slices.Clone(s.entries) {
		if e.of(by.tenant, o.Session, o.Branch) {
			s.remove(e, &s.counts.Changed)
		}
	}
	if s.closed || s.o.Memory > 0 && o.Machine.Memory > s.o.Memory {
		return
	}
	for len(s.entries) >= s.o.Turns || s.o.Memory > 0 && s.memory+o.Machine.Memory > s.o.Memory {
		if !s.evict() {
			return
		}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	e := &entry{Offer: o, owner: by, since: time.Now(), cancel: cancel, made: make(chan struct{})}
	s.entries = append(s.entries, e)
	s.memory += o.Machine.Memory
	s.wg.Go(func() {
		defer cancel()
		s.make(ctx, e)
	})
}

func (e *entry) of(tenant string, session turnstone.SessionID, branch string) bool {
	return e.owner.tenant == tenant && e.Session == session && e.Branch == branch
}

// remove takes a machine from the shelf, and closes it. The caller holds s.mu.
func (s *Shelf) remove(e *entry, why *int64) {
	*why++
	s.detach(e)
	e.cancel()
	if e.m != nil {
		s.wg.Go(func() { _ = e.m.Close() })
	}
}

func (s *Shelf) detach(e *entry) {
	e.gone = true
	s.memory -= e.Machine.Memory
	s.entries = slices.DeleteFunc(s.entries, func(o *entry) bool { return o == e })
}

// evict removes the least recently offered machine that no turn waits for, and reports whether there
// was one. The caller holds s.mu.
func (s *Shelf) evict() bool {
	for _, e := range s.entries {
		if !e.claimed {
			s.remove(e, &s.counts.Evicted)
			return true
		}
	}
	return false
}

// make makes the machine of e when it is its turn.
func (s *Shelf) make(ctx context.Context, e *entry) {
	defer close(e.made)
	select {
	case s.makers <- struct{}{}:
		defer func() { <-s.makers }()
	case <-ctx.Done():
		return
	}
	if !s.begin(e) {
		return
	}
	m, err := e.Make(ctx)
	if err != nil && ctx.Err() == nil {
		s.o.Failed(e.owner.tenant, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && e.gone:
	case err != nil:
		s.remove(e, &s.counts.Failed)
	case e.gone:
		s.wg.Go(func() { _ = m.Close() })
	default:
		s.counts.Made++
		e.m, e.since = m, time.Now()
	}
}

// begin reports whether the machine of e is still wanted, and there is room for it.
func (s *Shelf) begin(e *entry) bool {
	s.mu.Lock()
	room, waiting := s.room, s.memory-e.Machine.Memory
	s.mu.Unlock()
	enough := room == nil || room(e.Machine, waiting) // it may ask the shelf, and others
	s.mu.Lock()
	defer s.mu.Unlock()
	if !e.gone && !enough {
		s.remove(e, &s.counts.Evicted)
	}
	e.begun = !e.gone
	return e.begun
}

// take gives the machine of k to a turn on branch, and waits for it while it is made.
func (s *Shelf) take(ctx context.Context, by owner, branch string, k Key) Machine {
	e := s.claim(by, branch, k)
	if e == nil {
		return nil
	}
	select {
	case <-e.made:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.gone || e.m == nil {
		s.counts.Misses++
		if !e.gone {
			s.remove(e, &s.counts.Changed) // nobody will ask for it
		}
		return nil
	}
	s.detach(e)
	s.counts.Hits++
	return e.m
}

// claim returns the machine of k for the turn that asks first.
func (s *Shelf) claim(by owner, branch string, k Key) (found *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range slices.Clone(s.entries) {
		switch {
		case e.claimed:
		case found == nil && e.owner == by && e.Key == k && e.begun:
			e.claimed, found = true, e
		case e.of(by.tenant, k.Session, branch):
			s.remove(e, &s.counts.Changed) // another head, another kind, or too late
		}
	}
	if found == nil {
		s.counts.Misses++
	}
	return found
}

// Yield closes machines, the least recently offered first, until their memory is at least want, or
// none is left. It returns their memory, and does not wait for their ends.
func (s *Shelf) Yield(want turnstone.Bytes) (freed turnstone.Bytes) {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.memory
	for before-s.memory < want && s.evict() {
	}
	return before - s.memory
}

// Memory returns the memory of the shapes of machines that wait or are made.
func (s *Shelf) Memory() turnstone.Bytes {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory
}

// Stats returns the state of the shelf.
func (s *Shelf) Stats() Stats {
	if s == nil {
		return Stats{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := Stats{Counts: s.counts, Memory: s.memory}
	for _, e := range s.entries {
		if e.m != nil {
			all.Ready++
		} else {
			all.Making++
		}
	}
	return all
}

// Close closes all machines, and waits for their ends. Later offers are ignored.
func (s *Shelf) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	s.closed = true
	for _, e := range slices.Clone(s.entries) {
		s.remove(e, &s.counts.Changed)
	}
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
	return nil
}
