package auth

import (
	"crypto/sha256"
	"sync"
	"time"
)

func digest(s string) [sha256.Size]byte { return sha256.Sum256([]byte(s)) }

// maxHold bounds how long a clock that was set back is not believed.
const maxHold = 10 * time.Minute

// A Clock is the time that tokens are judged by. A wall clock that is set back would make expired
// tokens valid again, so expiry is judged by Latest: the time that a steady clock has reached since
// the last reading, for at most ten minutes; then the wall clock is believed. Until then a new
// token that lives shorter than the clock was set back is refused. A Clock may be used
// concurrently.
type Clock struct {
	wall func() time.Time
	up   func() time.Duration

	mu     sync.Mutex
	anchor moment
	behind time.Duration // up, when the wall clock was first seen behind
	held   bool
}

// A moment is a time by both clocks.
type moment struct {
	wall time.Time
	up   time.Duration
}

// NewClock returns a clock from a wall clock and from a clock that only grows.
func NewClock(wall func() time.Time, up func() time.Duration) *Clock {
	c := &Clock{wall: wall, up: up}
	c.anchor = c.now()
	return c
}

// SystemClock returns a clock of this machine.
func SystemClock() *Clock {
	start := time.Now()
	return NewClock(time.Now, func() time.Duration { return time.Since(start) })
}

// Now returns the wall clock's time.
func (c *Clock) Now() time.Time { return c.now().wall }

func (c *Clock) now() moment { return moment{c.wall().Round(0), c.up()} }

// Latest returns a time that does not go back when the wall clock does.
func (c *Clock) Latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	steady := c.anchor.wall.Add(now.up - c.anchor.up)
	// A second of difference is a clock that is being adjusted.
	if !now.wall.Before(steady.Add(-time.Second)) {
		c.anchor, c.held = now, false
		return now.wall
	}
	if !c.held {
		c.held, c.behind = true, now.up
	}
	if now.up-c.behind >= maxHold {
		c.anchor, c.held = now, false
		return now.wall
	}
	return steady
}

// since returns how long ago m was, by the clock that says more: the steady one stands still while
// a machine sleeps, and the wall clock may be set back.
func (c *Clock) since(m moment) time.Duration {
	now := c.now()
	return max(now.up-m.up, now.wall.Sub(m.wall))
}
