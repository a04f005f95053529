package flags

import (
	"time"

	"turnstone.dev/turnstone"
)

// ForDeterminism are the flags of a deterministic turn.
type ForDeterminism struct {
	Deterministic *bool  `help:"Give the same result on every run." negatable:""`
	Tier          string `help:"Set the tier of a deterministic turn." enum:",seeded,strict" default:"" placeholder:"seeded|strict"`
	Seed          *seed  `help:"Seed the random numbers of a deterministic turn." placeholder:"N"`
	Clock         *clock `help:"Start the clock of a deterministic turn here." placeholder:"TIME"`
}

// SeedValue returns the seed of the flag; nil: none was given.
func (f *ForDeterminism) SeedValue() *uint64 { return (*uint64)(f.Seed) }

// ClockValue returns the time of the flag, or the zero time.
func (f *ForDeterminism) ClockValue() time.Time {
	if f.Clock == nil {
		return time.Time{}
	}
	return time.Time(*f.Clock)
}

type seed uint64

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *seed) UnmarshalText(text []byte) error {
	n, err := turnstone.ParseSeed(string(text))
	*s = seed(n)
	return err
}

type clock time.Time

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *clock) UnmarshalText(text []byte) error {
	t, err := turnstone.ParseClock(string(text))
	*c = clock(t)
	return err
}
