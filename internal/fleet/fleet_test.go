package fleet

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTables prints the state machines, and holds that docs/scaling.md shows them.
func TestTables(t *testing.T) {
	page, err := os.ReadFile("../../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, table := range map[string]string{"nodes": NodeTable.String(),
		"turns": TurnTable.String(), "sandboxes": SandboxTable.String()} {
		t.Logf("%s:\n%s", name, table)
		if !strings.Contains(string(page), table) {
			t.Errorf("docs/scaling.md does not show the table of %s", name)
		}
	}
}

var testTimes = Times{Suspect: 10 * time.Second, Lost: 20 * time.Second, Forget: time.Hour,
	Settle: 10 * time.Second, Young: 10 * time.Second}

const gib = 1 << 30

func roomy() Report {
	return Report{Capacity: Resources{CPUs: 64, Memory: 64 * gib, Disk: 1000 * gib}, Version: "2"}
}

func one(tenant string) Need {
	m := Resources{CPUs: 1, Memory: gib, Disk: 4 * gib}
	return Need{Tenant: tenant, Works: true, Machine: true, Want: m, Counts: m}
}

func fill(f *Fleet, count int, r Report) {
	for i := range count {
		name := fmt.Sprintf("n%04d", i)
		f.Register(0, name, r)
		f.Sync(name, true)
	}
}

// TestNodes walks a node through its life.
func TestNodes(t *testing.T) {
	f := New(Options{Times: testTimes})
	at := func(now time.Duration, want NodeState) {
		t.Helper()
		f.Tick(now)
		if got := f.State("a"); got != want {
			t.Errorf("after %s the node is %s, not %s", now, got, want)
		}
	}
	f.Remember(0, "a", Report{})
	at(0, Suspect)
	f.Register(0, "a", roomy())
	f.Sync("a", true)
	at(10*time.Second, Registered)
	at(11*time.Second, Suspect)
	if _, v := f.Place(0, one("x")); v != Placed {
		t.Errorf("the only node is suspect: %s", v)
	}
	f.Register(12*time.Second, "a", roomy())
	at(13*time.Second, Registered)
	at(40*time.Second, Lost)
	if _, v := f.Place(0, Need{Node: "a"}); v != Absent {
		t.Errorf("a lost node gets a claim: %s", v)
	}
	f.Register(50*time.Second, "a", roomy())
	at(50*time.Second, Back)
	if _, v := f.Place(0, one("x")); v != Absent {
		t.Errorf("a node whose list is not compared gets new work: %s", v)
	}
	if _, v := f.Place(0, Need{Node: "a"}); v != Placed {
		t.Errorf("what is on the node is not found: %s", v)
	}
	f.Sync("a", true)
	at(51*time.Second, Registered)
	drains := roomy()
	drains.Drains = true
	f.Register(52*time.Second, "a", drains)
	at(53*time.Second, Draining)
	if _, v := f.Place(0, one("x")); v != Absent {
		t.Errorf("a draining node gets new work: %s", v)
	}
	f.Register(54*time.Second, "a", roomy()) // the drain is withdrawn
	at(54*time.Second, Registered)
	at(2*time.Minute, Lost)
	at(2*time.Hour, Unknown)
	f.RememberLost(2*time.Hour-time.Minute, "a", roomy())
	at(2*time.Hour, Lost)
	if s := f.Silence(2*time.Hour, "a"); s != time.Minute {
		t.Errorf("the node is silent for %s", s)
	}
	f.Register(2*time.Hour, "a", roomy())
	at(2*time.Hour, Back)
	at(3*time.Hour, Lost)
	if _, forgotten := f.Tick(4 * time.Hour); !slices.Equal(forgotten, []string{"a"}) {
		t.Errorf("%v are forgotten", forgotten)
	}
}

// TestAvoid: a claim gets no node that it avoids, in fleets of each size, and a pool has no share there.
func TestAvoid(t *testing.T) {
	for _, nodes := range []int{2, 40} {
		f := New(Options{Times: testTimes, Seed: 1})
		fill(f, nodes, roomy())
		need := one("x")
		for n := range nodes - 1 {
			need.Avoid = append(need.Avoid, fmt.Sprintf("n%04d", n))
		}
		last := fmt.Sprintf("n%04d", nodes-1)
		for range 20 {
			if r, v := f.Place(0, need); v != Placed || r.Node != last {
				t.Errorf("placed on %q: %s", r.Node, v)
			}
		}
		p := NewPools([]Pool{{Kind: Kind{Tenant: "x"}, Min: 3, Max: 3, Avoid: need.Avoid}}, nil)
		p.Tick(0, time.Second, f.Open())
		if s := p.Shares(last); s[0].Count != 3 {
			t.Errorf("%s has the share %v", last, s)
		}
		need.Avoid = append(need.Avoid, last)
		if _, v := f.Place(0, need); v != Avoided {
			t.Errorf("all are to be avoided: %s", v)
		}
		need.Node = last
		if _, v := f.Place(0, need); v != Avoided {
			t.Errorf("the node that has to be is to be avoided: %s", v)
		}
	}
}

// TestUpgrade: new work goes to the new version as long as it fits there.
func TestUpgrade(t *testing.T) {
	f := New(Options{Times: testTimes, Version: "2"})
	old := roomy()
	old.Version = "1"
	fill(f, 4, old)
	f.Register(0, "new", roomy())
	f.Sync("new", true)
	counts := map[string]int{}
	for range 70 {
		r, v := f.Place(0, one("x"))
		if v != Placed {
			t.Fatal(v)
		}
		counts[r.Node]++
	}
	if counts["new"] != 64 {
		t.Errorf("the new node got %d of 70, and has room for 64", counts["new"])
	}
	if _, v := f.Place(0, Need{Version: "0", Machine: true}); v != WrongVersion {
		t.Errorf("a machine of a version that no node has: %s", v)
	}
	if r, _ := f.Place(0, Need{Version: "1"}); r.Node == "new" {
		t.Error("a kept machine resumes on another version")
	}
}

// TestBurst: many claims at once spread over nodes whose reports do not show them yet.
func TestBurst(t *testing.T) {
	for _, nodes := range []int{8, 32, 33, 1000} {
		f := New(Options{Times: testTimes, Seed: 1})
		fill(f, nodes, roomy())
		counts := map[string]int{}
		for range 8 * nodes {
			r, v := f.Place(0, one("x"))
			if v != Placed {
				t.Fatal(v)
			}
			counts[r.Node]++
		}
		most := 0
		for _, c := range counts {
			most = max(most, c)
		}
		t.Logf("%d nodes: of %d claims, the fullest node has %d", nodes, 8*nodes, most)
		if most > 12 || nodes <= few && most > 8 {
			t.Errorf("%d claims herd on one of %d nodes", most, nodes)
		}
	}
}

// TestNoOverrun: reservations and reports in any order never promise more than there is.
func TestNoOverrun(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		f := New(Options{Times: testTimes, Seed: seed})
		report := roomy()
		report.Capacity.Memory = 20 * gib
		fill(f, 40, report)
		there := map[string]uint64{} // what nodes have
		var open []Reservation
		now := time.Duration(0)
		for range 2000 {
			now += time.Duration(random.IntN(1000)) * time.Millisecond
			switch random.IntN(4) {
			case 0, 1:
				if r, v := f.Place(now, one("x")); v == Placed {
					open = append(open, r)
					there[r.Node] += gib
					if there[r.Node] > report.Capacity.Memory {
						t.Fatalf("seed %d: %s is overrun", seed, r.Node)
					}
				} else if v != Full {
					t.Fatal(v)
				}
			case 2:
				if len(open) > 0 {
					i := random.IntN(len(open))
					f.Done(now, open[i])
					if random.IntN(2) == 0 {
						there[open[i].Node] -= gib // it was refused, or has ended
					}
					open = slices.Delete(open, i, i+1)
				}
			default:
				name := fmt.Sprintf("n%04d", random.IntN(40))
				r := report
				r.Used.Memory = there[name]
				for _, x := range open { // the node may not know it yet
					if x.Node == name {
						r.Used.Memory -= gib
					}
				}
				f.Register(now, name, r)
			}
		}
	}
}

// TestPrefers: what a claim prefers decides before the load.
func TestPrefers(t *testing.T) {
	for _, nodes := range []int{5, 500} {
		f := New(Options{Times: testTimes})
		fill(f, nodes, roomy())
		kind := Kind{"x", "base", "1"}
		f.Templates("n0003", []string{"base"})
		f.Templates("n0004", []string{"base"})
		warm := roomy()
		warm.Warm, warm.Used.Memory = map[Kind]int{kind: 2}, 50*gib
		f.Register(1, "n0004", warm)
		need := one("x")
		need.Template, need.Kind = "base", kind
		var got []string
		for range 3 {
			r, _ := f.Place(1, need)
			got = append(got, r.Node)
		}
		if !slices.Equal(got, []string{"n0004", "n0004", "n0003"}) {
			t.Errorf("%v", got)
		}
		need.Want.Memory = 100 * gib
		if _, v := f.Place(1, need); v != TooLarge {
			t.Error(v)
		}
		need.Substrate = "none"
		if _, v := f.Place(1, need); v != Unable {
			t.Error(v)
		}
	}
}

// TestMeasured: a node whose memory is scarce in fact gets no machine, whatever it promised.
func TestMeasured(t *testing.T) {
	f := New(Options{Times: testTimes})
	for free, want := range map[uint64]Verdict{5 * gib: Placed, 3 * gib: Full, 0: Placed} {
		r := roomy()
		r.Free = free
		fill(f, 1, r)
		if _, v := f.Place(0, one("x")); v != want {
			t.Errorf("%d bytes are free: %s", free, v)
		}
	}
}

// TestDiskFull: a node whose disk is full in fact gets no machine, whatever else is free, and gets some
// again when there is room.
func TestDiskFull(t *testing.T) {
	f := New(Options{Times: testTimes})
	for _, full := range []bool{true, false, true} {
		r := roomy()
		r.DiskFull = full
		fill(f, 1, r)
		want := Placed
		if full {
			want = Full
		}
		if _, v := f.Place(0, one("x")); v != want {
			t.Errorf("full %t: %s", full, v)
		}
	}
	full := roomy()
	full.DiskFull = true
	fill(f, 2, full)
	f.Register(0, "n0001", roomy())
	for range 8 {
		if r, v := f.Place(0, one("x")); v != Placed || r.Node != "n0001" {
			t.Errorf("%s on %q", v, r.Node)
		}
	}
}

// TestMakes: a tenant's creations at one node are bounded, and a claim that was answered is none.
func TestMakes(t *testing.T) {
	f := New(Options{Times: testTimes})
	r := roomy()
	r.Makes = 2
	fill(f, 1, r)
	first, _ := f.Place(0, one("x"))
	f.Place(0, one("x"))
	if _, v := f.Place(0, one("x")); v != Full {
		t.Error(v)
	}
	if _, v := f.Place(0, one("y")); v != Placed {
		t.Error(v)
	}
	f.Done(0, first)
	if _, v := f.Place(0, one("x")); v != Placed {
		t.Error(v)
	}
	if _, v := f.Place(11*time.Second, one("x")); v != Placed { // the others wait for something else
		t.Error(v)
	}
}
