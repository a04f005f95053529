package fair

import (
	"context"
	"sync"
	"time"

	"turnstone.dev/turnstone"
)

// Shares bound the calls that are worked on at one time: of all tenants, and of each while another
// tenant calls, too. What waits for a share gets it in the order of a Queue, so that the calls of a
// flood wait for each other, and not for the processor. A call gives its share back while it waits
// for something else: see Rest. The methods are safe for concurrent use.
type Shares struct {
	limits    Limits
	all, each int

	mu     sync.Mutex
	queue  Queue[*visitor]
	held   map[string]int // by tenant
	sum    int
	recent [2]seen // the tenants that called last
}

// A seen tenant has called.
type seen struct {
	tenant string
	at     time.Time
}

// recently is how long a tenant counts as one that calls.
const recently = time.Second

// NewShares returns shares for calls on a number of processors. l bounds the calls that wait.
func NewShares(processors int, l Limits) *Shares {
	l.setDefaults()
	return &Shares{limits: l, all: 2 * processors, each: max(1, processors/2),
		held: make(map[string]int)}
}

// A Share is the right of one call to be worked on. Leave gives it back.
type Share struct {
	s      *Shares
	tenant string

	mu    sync.Mutex
	rests int // of Rest that run
	holds bool
	left  bool
}

type shareKey struct{}

// Enter waits for a share, and returns it with a context that has it. The error is of kind Exhausted
// if too many calls wait or the wait was too long, or of kind Canceled.
func (s *Shares) Enter(ctx context.Context, tenant string) (context.Context, *Share, error) {
	if err := s.enter(ctx, tenant, true); err != nil {
		return nil, nil, err
	}
	h := &Share{s: s, tenant: tenant, holds: true}
	return context.WithValue(ctx, shareKey{}, h), h, nil
}

// enter waits for a share. A new call is refused if too many wait.
func (s *Shares) enter(ctx context.Context, tenant string, fresh bool) error {
	v := &visitor{tenant: tenant, turn: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.note(tenant); fresh {
		if err := s.limits.check(&s.queue, tenant); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	s.queue.Add(tenant, 1, v)
	s.next()
	s.mu.Unlock()
	select {
	case <-v.turn:
		return nil
	default:
	}
	late := time.NewTimer(s.limits.Wait)
	defer late.Stop()
	select {
	case <-v.turn:
		return nil
	case <-ctx.Done():
		s.abandon(v)
		return turnstone.NewError("queue.wait", turnstone.KindCanceled, "the wait", context.Cause(ctx))
	case <-late.C:
		s.abandon(v)
		return busy()
	}
}

// note remembers who calls. The caller has s.mu.
func (s *Shares) note(tenant string) {
	if s.recent[0].tenant != tenant {
		s.recent[1] = s.recent[0]
	}
	s.recent[0] = seen{tenant, time.Now()}
}

// most returns how many shares a tenant may have now. The caller has s.mu.
func (s *Shares) most(tenant string) int {
	for _, r := range s.recent {
		if r.tenant != tenant && !r.at.IsZero() && time.Since(r.at) < recently {
			return s.each
		}
	}
	return s.all
}

// next gives shares to those that are next. The caller has s.mu.
func (s *Shares) next() {
	for s.sum < s.all {
		v, ok := s.queue.Next()
		if !ok {
			return
		}
		if s.held[v.tenant] >= s.most(v.tenant) {
			s.queue.Block(v.tenant) // until one of its shares is given back
			continue
		}
		s.queue.Remove(v.tenant, v, true)
		s.held[v.tenant]++
		s.sum++
		v.turn <- struct{}{}
	}
}

// abandon takes a visitor out that waits, or gives back what it got meanwhile.
func (s *Shares) abandon(v *visitor) {
	s.mu.Lock()
	waits := s.queue.Remove(v.tenant, v, false)
	if waits {
		s.next()
	}
	s.mu.Unlock()
	if !waits {
		s.leave(v.tenant)
	}
}

func (s *Shares) leave(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum--
	if s.held[tenant]--; s.held[tenant] == 0 {
		delete(s.held, tenant)
	}
	s.queue.Unblock()
	s.next()
}

// Leave gives the share back.
func (h *Share) Leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.left = true
	h.giveBack()
}

// giveBack returns the share if the call has it. The caller has h.mu.
func (h *Share) giveBack() {
	if h.holds {
		h.holds = false
		h.s.leave(h.tenant)
	}
}

// Rest runs f, which waits for something else than the processor, such as another process, a lock or
// a turn. The call of the context, if it has a share, has none meanwhile. Who has a share must never
// wait for one who waits for a share.
func Rest(ctx context.Context, f func()) {
	h, _ := ctx.Value(shareKey{}).(*Share)
	if h == nil {
		f()
		return
	}
	h.mu.Lock()
	h.rests++
	h.giveBack()
	h.mu.Unlock()
	defer h.resume(ctx)
	f()
}

// resume gets a share again after the last Rest that runs. A call that waits too long for one
// continues without: its work has begun.
func (h *Share) resume(ctx context.Context) {
	h.mu.Lock()
	h.rests--
	again := h.rests == 0 && !h.left
	h.mu.Unlock()
	if !again || h.s.enter(ctx, h.tenant, false) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holds || h.left || h.rests > 0 { // another Rest of the call was faster
		h.s.leave(h.tenant)
		return
	}
	h.holds = true
}
