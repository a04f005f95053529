package pool

import (
	"context"
	"slices"
	"time"
)

// fill starts the machines that are missing, those of the longest waiting claims first. The caller
// holds p.mu.
func (p *Pool[M]) fill() {
	for !p.closed && p.making < p.o.Makers {
		s := p.missing()
		if s == nil || !p.afford(s) {
			return
		}
		s.making++
		p.making++
		p.memory += s.key.Shape.Memory
		generation := s.target.Generation
		p.wg.Go(func() { p.make(s, generation) })
	}
}

// missing returns the shelf that the next machine is made for; nil: none.
func (p *Pool[M]) missing() (found *shelf[M]) {
	for _, s := range p.shelves {
		if s.gone || len(s.ready)+s.checked+s.making >= max(s.target.Max, 1) {
			continue
		}
		if len(s.queue) > s.making {
			if found == nil || len(found.queue) <= found.making ||
				s.queue[s.making].number < found.queue[found.making].number {
				found = s
			}
			continue
		}
		there := len(s.ready) + s.looked + s.making
		if there-len(s.queue) >= s.target.Min || p.o.Since() < s.retry ||
			p.o.Since() < s.calm && 2*there >= s.target.Min ||
			p.o.Room != nil && !p.o.Room(s.key, p.memory) || !p.fits(s) {
			continue
		}
		if found == nil || len(found.queue) <= found.making && s.touched > found.touched {
			found = s
		}
	}
	return found
}

// fits reports whether the budget has memory for a machine of s, or would have it without machines
// that were used less recently.
func (p *Pool[M]) fits(s *shelf[M]) bool {
	if p.o.Memory == 0 {
		return true
	}
	free := p.o.Memory - p.memory
	for _, other := range p.shelves {
		if other.touched < s.touched {
			free += other.key.Shape.Memory * bytesOf(len(other.ready))
		}
	}
	return s.key.Shape.Memory <= free
}

// afford makes room in the budget for a machine of s, and reports whether there is. A claim that
// waits gets its machine also if the budget is too small for one.
func (p *Pool[M]) afford(s *shelf[M]) bool {
	if p.o.Memory == 0 {
		return true
	}
	for p.memory+s.key.Shape.Memory > p.o.Memory {
		old := p.oldest(s.touched)
		if old == nil {
			return len(s.queue) > 0 && p.making == 0
		}
		p.evict(old)
	}
	return true
}

// make makes a machine of s.
func (p *Pool[M]) make(s *shelf[M], generation string) {
	m, err := p.o.Make(p.ctx, s.key, generation)
	if err != nil && p.ctx.Err() == nil {
		p.o.Event(Event{Kind: MakeFailed, Key: s.key, Err: err})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.making--
	p.making--
	now := p.o.Since()
	if err == nil {
		s.counts.Made++
		s.pause, s.retry = 0, 0
		p.place(s, &entry[M]{m: m, generation: generation, since: now, checked: now})
	} else {
		p.memory -= s.key.Shape.Memory
		p.failed(s, now, err)
	}
	p.drop(s)
	p.fill()
}

// failed notes that a machine could not be made. The caller holds p.mu.
func (p *Pool[M]) failed(s *shelf[M], now time.Duration, err error) {
	s.counts.Failed++
	s.pause = min(max(2*s.pause, firstPause), lastPause)
	s.retry = now + s.pause
	if len(s.queue) > 0 {
		c := s.queue[0]
		s.queue = s.queue[1:]
		c.result <- result[M]{err: err}
	}
}

// watch looks after the machines that wait, until the pool ends.
func (p *Pool[M]) watch() {
	tick := time.NewTicker(min(p.o.Every, firstPause))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.Look(p.ctx)
		case <-p.ended:
			return
		}
	}
}

// Look closes machines that are idle for too long, checks those that were not checked lately, and
// makes those that are missing. The pool does so itself again and again.
func (p *Pool[M]) Look(ctx context.Context) {
	p.mu.Lock()
	if p.closed || p.looked {
		p.mu.Unlock()
		return
	}
	p.looked = true
	now := p.o.Since()
	for _, s := range p.shelves {
		p.expire(s, now)
	}
	p.fill()
	p.mu.Unlock()
	for {
		s, e := p.due(now)
		if e == nil {
			break
		}
		err := p.check(ctx, e)
		if ctx.Err() != nil {
			err = nil
		}
		if err != nil {
			p.leave(s, e, err)
			continue
		}
		p.mu.Lock()
		e.checked = max(now, p.o.Since())
		p.mu.Unlock()
		p.putBack(s, e)
	}
	p.mu.Lock()
	p.looked = false
	p.mu.Unlock()
}

// expire closes what waits for too long. The caller holds p.mu.
func (p *Pool[M]) expire(s *shelf[M], now time.Duration) {
	for len(s.ready) > s.target.Min && now-s.ready[0].since >= s.target.Idle {
		s.counts.Expired++
		p.discard(s, s.ready[0])
		s.ready = s.ready[1:]
	}
}

// due takes a machine whose check is due, and that no claim takes meanwhile.
func (p *Pool[M]) due(now time.Duration) (*shelf[M], *entry[M]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil
	}
	for _, s := range p.shelves {
		at := slices.IndexFunc(s.ready, func(e *entry[M]) bool { return now-e.checked >= p.o.Every })
		if at < 0 {
			continue
		}
		e := s.ready[at]
		s.ready = slices.Delete(s.ready, at, at+1)
		p.hold(s)
		s.looked++
		e.looked = true
		return s, e
	}
	return nil, nil
}
