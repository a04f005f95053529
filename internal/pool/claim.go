package pool

import (
	"context"
	"slices"
	"time"

	"turnstone.dev/turnstone"
)

// A Claimed is a machine that was taken from a pool. It belongs to the caller.
type Claimed[M Machine] struct {
	Machine M
	Queued  time.Duration // the wait for a machine; 0: one was ready
	Checked time.Duration // the health check
}

// Claim takes a machine of k, and waits for one if none is ready, until ctx ends. Of claims that
// wait, the first gets the first machine. The error is of kind NotFound if the pool keeps no such
// machines, Exhausted if too many claims wait, Unavailable if the pool ends, and otherwise that of
// Make.
func (p *Pool[M]) Claim(ctx context.Context, k Key) (Claimed[M], error) {
	return p.claim(ctx, k, true)
}

// TryClaim is Claim for a caller that does not wait: if no machine is ready, the error is of kind
// Exhausted.
func (p *Pool[M]) TryClaim(ctx context.Context, k Key) (Claimed[M], error) {
	return p.claim(ctx, k, false)
}

func (p *Pool[M]) claim(ctx context.Context, k Key, wait bool) (got Claimed[M], err error) {
	c, s, err := p.enter(k)
	if err != nil {
		return got, err
	}
	for {
		e, err := p.next(c, s, wait)
		if err != nil {
			return got, err
		}
		if e == nil {
			began := p.o.Since()
			if e, err = p.await(ctx, c, s); err != nil {
				return got, err
			}
			got.Queued += p.o.Since() - began
			p.leave(s, e, nil)
			got.Machine = e.m
			return got, nil
		}
		began := p.o.Since()
		err = p.check(ctx, e)
		got.Checked += p.o.Since() - began
		if ctx.Err() != nil { // the check says nothing then
			p.putBack(s, e)
			return got, canceled(ctx)
		}
		p.leave(s, e, err)
		if err == nil {
			got.Machine = e.m
			return got, nil
		}
	}
}

// enter gives a claim its number.
func (p *Pool[M]) enter(k Key) (*claim[M], *shelf[M], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelves[k]
	switch {
	case p.closed:
		return nil, nil, ending()
	case s == nil || s.gone:
		return nil, nil, turnstone.Errorf("pool.claim", turnstone.KindNotFound, "the pool",
			"keeps no such machines")
	}
	p.order++
	s.touched = p.o.Since()
	s.calm = s.touched + p.o.Calm
	return &claim[M]{number: p.order, result: make(chan result[M], 1)}, s, nil
}

// next takes a machine that is ready, for a check. Without one it queues c, and returns nil.
func (p *Pool[M]) next(c *claim[M], s *shelf[M], wait bool) (*entry[M], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.fill()
	if p.closed || s.gone {
		return nil, ending()
	}
	if n := len(s.ready); n > 0 { // so none waits that came before
		e := s.ready[n-1] // the newest: those that are never needed grow old, and are closed
		s.ready = s.ready[:n-1]
		p.hold(s)
		return e, nil
	}
	switch {
	case !wait:
		s.counts.Missed++
		return nil, turnstone.Errorf("pool.claim", turnstone.KindExhausted, "the pool",
			"has no machine that is ready")
	case len(s.queue) >= p.o.Queue:
		s.counts.Refused++
		return nil, turnstone.Errorf("pool.claim", turnstone.KindExhausted, "the pool",
			"has %d claims that wait, and takes no more", len(s.queue)).WithHint("try again later")
	}
	// a claim whose machine was dead has its place before those that came later
	at, _ := slices.BinarySearchFunc(s.queue, c.number,
		func(q *claim[M], number int64) int { return int(q.number - number) })
	s.queue = slices.Insert(s.queue, at, c)
	return nil, nil
}

// await waits for the machine of a claim that queues.
func (p *Pool[M]) await(ctx context.Context, c *claim[M], s *shelf[M]) (*entry[M], error) {
	select {
	case r := <-c.result:
		return r.e, r.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	at := slices.Index(s.queue, c)
	if at >= 0 {
		s.queue = slices.Delete(s.queue, at, at+1)
		s.counts.Left++
	}
	p.mu.Unlock()
	if at < 0 {
		if r := <-c.result; r.e != nil { // it was served at the same moment: the next claim's
			p.putBack(s, r.e)
		}
	}
	return nil, canceled(ctx)
}

// hold counts a machine that is neither ready nor given away; leave or putBack follows. Until then
// the pool does not end. The caller holds p.mu.
func (p *Pool[M]) hold(s *shelf[M]) {
	s.checked++
	p.wg.Add(1)
}

// release ends a hold. The caller holds p.mu.
func (p *Pool[M]) release(s *shelf[M], e *entry[M]) {
	s.checked--
	if e.looked {
		s.looked--
		e.looked = false
	}
}

// check asks a machine whether it lives.
func (p *Pool[M]) check(ctx context.Context, e *entry[M]) error {
	ctx, cancel := context.WithTimeout(ctx, p.o.CheckTime)
	defer cancel()
	return e.m.Check(ctx)
}

// leave ends the stay of a machine that was counted as checked: it is given away, or, with an
// error, closed.
func (p *Pool[M]) leave(s *shelf[M], e *entry[M], err error) {
	defer p.wg.Done()
	p.mu.Lock()
	p.release(s, e)
	p.memory -= s.key.Shape.Memory
	if err == nil {
		s.counts.Claimed++
	} else {
		s.counts.Died++
	}
	p.drop(s)
	p.fill()
	if err != nil {
		p.closeLater(s.key, e.m)
	}
	p.mu.Unlock()
	if err != nil {
		p.o.Event(Event{Kind: CheckFailed, Key: s.key, Err: err})
	}
}

// putBack returns a machine that was counted as checked, and that nobody has had.
func (p *Pool[M]) putBack(s *shelf[M], e *entry[M]) {
	defer p.wg.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(s, e)
	p.place(s, e)
	p.drop(s)
	p.fill()
}

// place gives a machine to the first claim that waits, or lets it wait. The caller holds p.mu.
func (p *Pool[M]) place(s *shelf[M], e *entry[M]) {
	switch {
	case p.closed || s.gone || e.generation != s.target.Generation:
		s.counts.Drained++
		p.discard(s, e)
	case len(s.queue) > 0:
		c := s.queue[0]
		s.queue = s.queue[1:]
		p.hold(s)
		c.result <- result[M]{e: e}
	case len(s.ready)+s.checked >= s.target.Max: // the target is lower than when the making began
		s.counts.Drained++
		p.discard(s, e)
	default:
		at, _ := slices.BinarySearchFunc(s.ready, e.since, func(r *entry[M], since time.Duration) int {
			return int(r.since - since)
		})
		s.ready = slices.Insert(s.ready, at, e)
	}
}

func ending() error {
	return turnstone.Errorf("pool.claim", turnstone.KindUnavailable, "the pool", "ends")
}

func canceled(ctx context.Context) error {
	return turnstone.NewError("pool.claim", turnstone.KindCanceled, "the pool", context.Cause(ctx))
}
