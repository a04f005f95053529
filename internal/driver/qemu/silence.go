package qemu

import (
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
)

// A silence adds up how long a kernel has printed nothing. Time in which its machine waits for a processor
// or a disk of the host does not count, so that a busy host is no stuck kernel.
type silence struct {
	text   string
	looked time.Time
	stall  console.Stall
}

// silenceLook is how often the load is measured.
const silenceLook = 100 * time.Millisecond

// look takes what the console has, and returns the silence since that has changed. load measures the
// machine; if it fails, all time counts.
func (s *silence) look(text string, now time.Time, load func() (console.Load, error)) time.Duration {
	if further := text != s.text; further || now.Sub(s.looked) >= silenceLook {
		l, err := load()
		s.stall.Add(further, now, l, err == nil)
		s.text, s.looked = text, now
	}
	return s.stall.Idle + s.stall.Work
}
