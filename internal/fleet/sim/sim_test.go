package sim

import (
	"flag"
	"testing"
	"time"
)

var (
	one   = flag.Uint64("seed", 0, "the only seed to run; 0: as many as there are")
	seeds = flag.Int("seeds", 20, "how many seeds to run")
)

// small is a fleet in which everything happens within minutes.
func small(seed uint64) Config {
	return Config{Seed: seed, Nodes: 8, Claims: 300, Turns: 60, Faults: 5 * time.Minute,
		Quiet: 6 * time.Minute, Every: 2 * time.Second, Capacity: 4096, Life: 2 * time.Minute,
		Register: 5 * time.Second, Keep: 2000}
}

// TestSeeds simulates small fleets in which everything breaks. -seed N repeats one of them.
func TestSeeds(t *testing.T) {
	first, last := uint64(1), uint64(*seeds)
	if *one != 0 {
		first, last = *one, *one
	}
	for seed := first; seed <= last; seed++ {
		r, err := Run(small(seed))
		if err != nil {
			t.Fatalf("%s\nseed %d: %v\nrepeat it with: go test ./internal/fleet/sim -run TestSeeds -seed %d",
				r.Trace, seed, err, seed)
		}
		r.Trace = ""
		t.Logf("seed %d: %+v", seed, r)
	}
}
