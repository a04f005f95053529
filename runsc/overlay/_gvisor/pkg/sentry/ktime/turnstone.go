// Rounds of a synthetic clock. This file is added by Turnstone's build.

package ktime

// NewRound begins a round of c: no timer has expired in it.
func (c *SyntheticClock) NewRound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
}

// NextInRound returns the earliest expiration of a timer that has not expired in this round.
func (c *SyntheticClock) NextInRound() (Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for seg := c.timers.FirstSegment(); seg.Ok(); seg = seg.NextSegment() {
		for t := seg.ValuePtr().timers.Front(); t != nil; t = t.Next() {
			if t.expiredIn != c.round {
				return FromNanoseconds(int64(seg.Start())), true
			}
		}
	}
	return Time{}, false
}
