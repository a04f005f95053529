package qemu

import (
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
)

// A silence adds up how long a kernel has printed nothing. Time in which its machine waits for a processor
// or a disk of the host does not count, so that a busy host is no stuck kernel; see console.Patience.
type silence struct {
	text  string
	at    time.Time
	cpu   time.Duration
	total time.Duration
}

// silenceLook is how often the load is measured.
const silenceLook = 100 * time.Millisecond

// look takes what the console has, and returns the silence since that has changed. load measures the
// machine; if it fails, all time counts.
func (s *silence) look(text string, now time.Time, load func() (console.Load, error)) time.Duration {
	passed := now.Sub(s.at)
	if text == s.text && passed < silenceLook {
		return s.total
	}
	l, err := load()
	worked := l.CPU - s.cpu
	first := s.at.IsZero()
	s.at, s.cpu = now, l.CPU
	switch {
	case first || text != s.text:
		s.text, s.total = text, 0
	case err != nil || !l.Busy && worked*10 < passed: // less than a tenth of a processor is idle
		s.total += passed
	default:
		s.total += worked
	}
	return s.total
}
