package sim

import (
	"flag"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/fleet"
)

var (
	one   = flag.Uint64("seed", 0, "the only seed to run; 0: as many as there are")
	seeds = flag.Int("seeds", 20, "how many seeds to run")
	large = flag.Bool("large", false, "simulate 2,000 nodes and 100,000 sandboxes, too")
)

// small is a fleet in which everything happens within minutes.
func small(seed uint64) Config {
	return Config{Seed: seed, Nodes: 9, Gone: 1, Claims: 300, Turns: 60, Faults: 5 * time.Minute,
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

// TestReplay: the same seed gives the same run.
func TestReplay(t *testing.T) {
	a, err := Run(small(3))
	b, again := Run(small(3))
	if a != b || err != nil || again != nil {
		t.Errorf("two runs of a seed differ: %v, %v", err, again)
	}
}

// A mutation is a broken rule, which the simulation must find.
type mutation struct {
	name   string
	change func(*rules)
}

func wall(w *world, n *node) time.Duration { return w.clock(&n.host) + n.wall }

func mutations() []mutation {
	return []mutation{
		{"a commit does not name its fence", func(r *rules) {
			r.commit = func(t *fleet.Turn, _ uint64) fleet.Refusal { return t.Commit(t.Fence) }
		}},
		{"the end of a lease takes no fence", func(r *rules) {
			r.reap = func(t *fleet.Turn, now time.Duration) bool {
				fence := t.Fence
				done := t.Reap(now)
				if done {
					t.Fence = fence - 1 // so that the next holder has the same
				}
				return done
			}
		}},
		{"every turn starts again, as often as it takes", func(r *rules) {
			r.reap = func(t *fleet.Turn, now time.Duration) bool {
				retry, attempt := t.Retry, t.Attempt
				t.Retry, t.Attempt = true, 0
				done := t.Reap(now)
				t.Retry, t.Attempt = retry, attempt
				return done
			}
		}},
		{"a turn starts again whose document does not say so", func(r *rules) {
			r.reap = func(t *fleet.Turn, now time.Duration) bool {
				retry := t.Retry
				t.Retry = true
				done := t.Reap(now)
				t.Retry = retry
				return done
			}
		}},
		{"a holder whose lease ends continues", func(r *rules) {
			r.stopAt = func(*run) time.Duration { return 1 << 62 }
			r.holderStops = false
		}},
		{"a holder counts from the answer", func(r *rules) {
			r.stopAt = func(x *run) time.Duration { return x.answer + turnLife }
		}},
		{"leases are counted by the wall clock", func(r *rules) { r.clock = wall }},
		{"a write is answered before it is on the disk", func(r *rules) { r.durable = false }},
		{"a turn is committed when its first object is stored", func(r *rules) { r.stores = 1 }},
		{"a key makes a record each time", func(r *rules) { r.idempotent = false }},
		{"a node forgets what it has made", func(r *rules) { r.once = false }},
		{"claims reserve nothing", func(r *rules) { r.reserves = false }},
		{"nodes admit everything, and claims reserve nothing", func(r *rules) {
			r.reserves = false
			r.admits = func(*world, *node, uint64) bool { return true }
		}},
		{"nodes admit everything, and a new controller knows no records", func(r *rules) {
			r.remembers = false
			r.admits = func(*world, *node, uint64) bool { return true }
		}},
		{"old controllers are obeyed", func(r *rules) { r.leaderFence = false }},
		{"only the controller ends sandboxes", func(r *rules) { r.nodeEnds = false }},
		{"lost nodes keep their shares of pools", func(r *rules) { r.forgets = false }},
	}
}

// mutationSeeds is how many seeds a broken rule may take to be found.
const mutationSeeds = 200

// TestMutations breaks each rule, and checks that the simulation finds it.
func TestMutations(t *testing.T) {
	for _, m := range mutations() {
		r := goodRules()
		m.change(&r)
		found := false
		for seed := uint64(1); seed <= mutationSeeds && !found; seed++ {
			c := small(seed)
			c.Keep = 0
			if _, err := simulate(c, r); err != nil {
				t.Logf("%s: found by seed %d: %v", m.name, seed, err)
				found = true
			}
		}
		if !found {
			t.Errorf("%s: not found by %d seeds", m.name, mutationSeeds)
		}
	}
}

// big is a fleet of thousands of nodes, with 100,000 sandboxes at one time.
func big(nodes, claims int) Config {
	return Config{Seed: 1, Nodes: nodes, Gone: nodes / 100, Claims: claims, Turns: claims / 20,
		Faults: 4 * time.Minute, Quiet: 6 * time.Minute, Every: 300 * time.Millisecond, Capacity: 64 << 10,
		Life: 5 * time.Minute, Register: 5 * time.Second, Keep: 200}
}

// TestLarge simulates a larger fleet; with -large one of 2,000 nodes and 100,000 sandboxes.
func TestLarge(t *testing.T) {
	c := big(200, 4000)
	if *large {
		c = big(2000, 200_000)
		c.Life = 15 * time.Minute
	}
	r, err := Run(c)
	if err != nil {
		t.Fatalf("%s\n%v", r.Trace, err)
	}
	r.Trace = ""
	t.Logf("%d nodes: %+v", c.Nodes, r)
}
