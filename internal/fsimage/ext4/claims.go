package ext4

import "sync"

// claims is a set of numbers below a limit, in pages that are allocated on first use: its memory
// depends on the used numbers, not on the limit.
type claims struct {
	limit uint64

	mu    sync.Mutex
	pages map[uint64]*[claimWords]uint64
}

const (
	claimWords = 512
	claimBits  = claimWords * 64
)

// take adds the n numbers from start on, and reports whether none was in the set. It adds no number
// at or above the limit.
func (c *claims) take(start, n uint64) bool {
	if start >= c.limit || n > c.limit-start {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pages == nil {
		c.pages = map[uint64]*[claimWords]uint64{}
	}
	ok := true
	for end := start + n; start < end; {
		p := c.pages[start/claimBits]
		if p == nil {
			p = new([claimWords]uint64)
			c.pages[start/claimBits] = p
		}
		// The bits of a word at a time.
		bit := start % 64
		count := min(64-bit, end-start)
		mask := ^uint64(0) >> (64 - count) << bit
		word := &p[start%claimBits/64]
		ok = ok && *word&mask == 0
		*word |= mask
		start += count
	}
	return ok
}
