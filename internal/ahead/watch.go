package ahead

import (
	"context"
	"slices"
	"time"

	"turnstone.dev/turnstone"
)

// watch looks after the machines that wait, until the shelf is closed.
func (s *Shelf) watch() {
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.look()
		case <-s.ctx.Done():
			return
		}
	}
}

// look closes machines that have waited for too long, or that no turn can get any longer. A turn may
// get a machine while it is checked.
func (s *Shelf) look() {
	s.mu.Lock()
	var waiting []*entry
	for _, e := range slices.Clone(s.entries) {
		switch {
		case e.claimed || e.m == nil:
		case time.Since(e.since) >= s.o.Idle:
			s.remove(e, &s.counts.Idle)
		default:
			waiting = append(waiting, e)
		}
	}
	s.mu.Unlock()
	for _, e := range waiting {
		err := s.check(e)
		if err == nil || s.ctx.Err() != nil {
			continue
		}
		s.mu.Lock()
		if !e.gone && !e.claimed {
			why := &s.counts.Changed
			if turnstone.KindOf(err) == turnstone.KindDead {
				why = &s.counts.Died
			}
			s.remove(e, why)
		}
		s.mu.Unlock()
	}
}

func (s *Shelf) check(e *entry) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.CheckTime)
	defer cancel()
	return e.m.Check(ctx)
}
