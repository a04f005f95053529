package pool

import (
	"cmp"
	"slices"

	"turnstone.dev/turnstone"
)

// Counts are numbers of events since the pool began.
type Counts struct {
	Made    int64 // machines that were made
	Failed  int64 // machines that could not be made
	Claimed int64 // machines that were given away
	Missed  int64 // claims of TryClaim for which none was ready
	Refused int64 // claims for which the queue was full
	Left    int64 // claims whose context ended while they waited
	Died    int64 // machines whose check failed
	Expired int64 // machines that were idle for too long
	Evicted int64 // machines that were closed because memory was needed
	Drained int64 // machines of an earlier generation or target
}

// Stats are the state of one key.
type Stats struct {
	Key     Key
	Target  Target
	Ready   int // machines that wait, with those that are being checked
	Making  int
	Waiting int             // claims
	Memory  turnstone.Bytes // of the shapes of machines that wait or are made
	Counts
}

// Stats returns the state of all keys, in a fixed order.
func (p *Pool[M]) Stats() []Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Stats, 0, len(p.shelves))
	for _, s := range p.shelves {
		if s.gone {
			continue
		}
		ready := len(s.ready) + s.checked
		all = append(all, Stats{Key: s.key, Target: s.target, Ready: ready, Making: s.making,
			Waiting: len(s.queue), Counts: s.counts,
			Memory: s.key.Shape.Memory * bytesOf(ready+s.making)})
	}
	slices.SortFunc(all, func(a, b Stats) int {
		return cmp.Or(cmp.Compare(a.Key.Tenant, b.Key.Tenant), cmp.Compare(a.Key.Source, b.Key.Source),
			cmp.Compare(a.Key.Shape.Memory, b.Key.Shape.Memory),
			cmp.Compare(a.Key.Shape.CPUs, b.Key.Shape.CPUs),
			cmp.Compare(a.Key.Shape.Disk, b.Key.Shape.Disk), cmp.Compare(a.Key.Policy, b.Key.Policy))
	})
	return all
}

// Memory returns the memory of the shapes of machines that wait or are made.
func (p *Pool[M]) Memory() turnstone.Bytes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.memory
}

func bytesOf(n int) turnstone.Bytes { return turnstone.Bytes(n) }
