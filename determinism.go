package turnstone

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Tier is a level of determinism. docs/determinism.md says what each tier promises.
type Tier string

// The tiers. The zero value stands for a turn that is not deterministic, or for no choice.
const (
	TierSeeded Tier = "seeded" // gVisor with seeded random numbers and virtual clocks
	TierStrict Tier = "strict" // QEMU whose clock counts instructions
)

// Tiers returns all tiers.
func Tiers() []Tier { return []Tier{TierSeeded, TierStrict} }

// MaxSeed is the greatest seed: every reader of JSON has it exactly.
const MaxSeed = 1<<53 - 1

// The years that a pinned clock may start in.
const (
	firstYear = 1970
	lastYear  = 2100
)

// A Determinism is what a deterministic turn runs with. The same document on the same state with
// the same Determinism gives the same result, as far as the tier promises it.
type Determinism struct {
	Tier Tier   `json:"tier"`
	Seed uint64 `json:"seed"` // of all random numbers, at most MaxSeed
	// Clock is when the clock of the turn starts: UTC, in whole seconds, from 1970 to 2100.
	Clock time.Time `json:"clock"`
}

// DefaultClock returns the Clock of a deterministic turn that requests none.
func DefaultClock() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// String returns a line of text, such as "seeded, seed 42, clock 2026-01-01T00:00:00Z".
func (d Determinism) String() string {
	return fmt.Sprintf("%s, seed %d, clock %s", d.Tier, d.Seed, d.Clock.UTC().Format(time.RFC3339))
}

// Validate reports a value that no turn runs with.
func (d Determinism) Validate() error {
	if !slices.Contains(Tiers(), d.Tier) {
		return fmt.Errorf("%.40q is not a tier", d.Tier)
	}
	if d.Seed > MaxSeed {
		return fmt.Errorf("the seed %d is greater than %d", d.Seed, uint64(MaxSeed))
	}
	return CheckClock(d.Clock)
}

// ParseDeterminism parses the text of Determinism.String.
func ParseDeterminism(text string) (Determinism, error) {
	var d Determinism
	var err error
	tier, rest, _ := strings.Cut(text, ", seed ")
	seed, clock, _ := strings.Cut(rest, ", clock ")
	d.Tier = Tier(tier)
	if d.Seed, err = ParseSeed(seed); err == nil {
		d.Clock, err = ParseClock(clock)
	}
	if err == nil {
		err = d.Validate()
	}
	if err == nil && d.String() != text {
		err = errors.New("it is spelled differently")
	}
	if err != nil {
		return Determinism{}, fmt.Errorf("%.100q is not TIER, seed NUMBER, clock TIME: %w", text, err)
	}
	return d, nil
}

// ParseSeed parses a seed: a decimal number from 0 to MaxSeed.
func ParseSeed(text string) (uint64, error) {
	seed, err := strconv.ParseUint(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || seed > MaxSeed:
		return 0, fmt.Errorf("%.40q is greater than %d", text, uint64(MaxSeed))
	case err != nil || strconv.FormatUint(seed, 10) != text:
		return 0, fmt.Errorf("%.40q is not a whole number", text)
	}
	return seed, nil
}

// ParseClock parses the time at which a pinned clock starts: a date, or a time of RFC 3339 without
// parts of a second. The result is in UTC.
func ParseClock(text string) (time.Time, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		t, err = time.Parse(time.RFC3339, text)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is neither a date nor a time", text)
	}
	t = t.UTC()
	return t, CheckClock(t)
}

// CheckClock reports a time at which no pinned clock starts.
func CheckClock(t time.Time) error {
	switch y := t.UTC().Year(); {
	case t.Nanosecond() != 0:
		return fmt.Errorf("%s is not in whole seconds", t.UTC().Format(time.RFC3339Nano))
	case y < firstYear:
		return fmt.Errorf("%s is before %d", t.UTC().Format(time.RFC3339), firstYear)
	case y > lastYear:
		return fmt.Errorf("%s is after %d", t.UTC().Format(time.RFC3339), lastYear)
	}
	return nil
}
