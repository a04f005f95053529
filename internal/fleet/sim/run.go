package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/fleet"
)

// rules are what the simulated programs call: those of package fleet. Tests break one of them to see
// that the simulation finds it.
type rules struct {
	commit      func(t *fleet.Turn, fence uint64) fleet.Refusal
	reap        func(t *fleet.Turn, now time.Duration) bool
	stopAt      func(x *run) time.Duration
	clock       func(w *world, n *node) time.Duration
	admits      func(w *world, n *node, memory uint64) bool
	stores      int  // objects that are stored before a commit
	durable     bool // the database answers a durable write when it is on the disk
	once        bool // a node makes a sandbox once
	idempotent  bool // one key makes one record
	reserves    bool // claims reserve room
	remembers   bool // a new controller counts what is in the records
	leaderFence bool // old controllers are refused
	nodeEnds    bool // nodes end sandboxes by themselves
	holderStops bool // a holder whose lease cannot be renewed stops
	forgets     bool // lost nodes have no share of a pool
}

func goodRules() rules {
	return rules{
		commit: (*fleet.Turn).Commit,
		reap:   (*fleet.Turn).Reap,
		stopAt: func(x *run) time.Duration { return fleet.StopAt(x.sent, turnLife) },
		clock:  func(w *world, n *node) time.Duration { return w.clock(&n.host) },
		admits: func(w *world, n *node, memory uint64) bool {
			return fleet.Resources{Memory: n.used() + memory}.Within(fleet.Resources{Memory: w.c.Capacity})
		},
		stores: parts, durable: true, once: true, idempotent: true, reserves: true, remembers: true,
		leaderFence: true, nodeEnds: true, holderStops: true, forgets: true,
	}
}

// kinds returns the kinds of sandboxes that wait in pools.
func (w *world) kinds() []fleet.Kind {
	return []fleet.Kind{{Tenant: "a", Template: "base"}, {Tenant: "b", Template: "python"}}
}

func (w *world) pools() (all []fleet.Pool) {
	for i, k := range w.kinds() {
		all = append(all, fleet.Pool{Kind: k, Min: 4 * i, Max: 40, Idle: time.Minute})
	}
	return all
}

// Result says what happened in a run.
type Result struct {
	Events, Claims, Commits, Turns, Refused int
	Sandboxes                               int    // the most at one time
	Trace                                   string // the events before a failure
}

// Run simulates a fleet. The error says what did not hold.
func Run(c Config) (Result, error) { return simulate(c, goodRules()) }

func simulate(c Config, r rules) (Result, error) {
	w := &world{c: c, rules: r, random: rand.New(rand.NewPCG(c.Seed, 0)), cuts: map[[2]*host]bool{},
		byName: map[string]*node{}, oracle: newOracle()}
	w.db = &database{rows: map[string]*row{}, keys: map[string]*row{}, turns: map[int]*fleet.Turn{},
		byNode: map[string]map[string]*row{}, nodes: map[string]fleet.Report{},
		leader: fleet.Turn{State: fleet.TurnWaits}}
	w.bucket = &bucket{objects: map[string]bool{}}
	w.api, w.operator, w.client = &apiServer{}, &operator{told: map[string]bool{}}, &host{}
	w.host(&w.db.host, "database")
	w.host(&w.bucket.host, "bucket")
	w.host(&w.api.host, "api server")
	w.host(&w.operator.host, "operator")
	w.host(w.client, "client")
	for i := range w.controllers {
		w.controllers[i] = &controller{}
		w.host(&w.controllers[i].host, fmt.Sprint("controller ", i))
		w.after(time.Duration(i)*time.Second, func() { w.startController(w.controllers[i]) })
	}
	for i := range c.Nodes {
		n := &node{version: "2", boxes: map[string]*box{}, ended: map[string]bool{}, turns: map[int]*run{},
			shares: map[fleet.Kind]int{}, warm: map[fleet.Kind]int{}, filling: map[fleet.Kind]int{}}
		w.host(&n.host, fmt.Sprintf("node %04d", i))
		if i%3 == 0 {
			n.version = "1"
		}
		w.nodes = append(w.nodes, n)
		w.byName[n.name] = n
		w.startNode(n)
	}
	w.every(&w.operator.host, 10*time.Second, w.watchObjects)
	w.load0()
	w.at(c.Faults, w.heal)
	if c.Every > 0 {
		w.fault()
		for range c.Gone {
			n := w.nodes[w.random.IntN(len(w.nodes))]
			w.at(w.between(time.Minute, c.Faults), func() { w.end(n, true, time.Hour+c.Faults+c.Quiet) })
		}
	}
	most := 0
	w.every(w.client, 10*time.Second, func() {
		sum := 0
		for _, n := range w.nodes {
			sum += len(n.boxes)
		}
		most = max(most, sum)
	})
	err := w.run()
	return Result{Events: w.count, Claims: w.oracle.claims, Commits: len(w.oracle.commits),
		Turns: len(w.db.turns), Refused: w.oracle.refused, Sandboxes: most,
		Trace: strings.Join(w.trace, "\n")}, err
}

// host sets what differs between computers.
func (w *world) host(h *host, name string) {
	h.name, h.rate = name, 1+(w.random.Float64()-0.5)*0.06
	h.off = -w.between(0, time.Hour)
	h.wall = w.between(-time.Hour, time.Hour)
}

// load0 plans the claims and turns: some at any time, some at once.
func (w *world) load0() {
	when := func() time.Duration {
		at := w.between(20*time.Second, w.c.Faults)
		if w.chance(0.4) {
			at = at.Truncate(time.Minute) + 20*time.Second
		}
		return min(at, w.c.Faults)
	}
	kinds := w.kinds()
	for i := range w.c.Claims {
		x := &claim{key: fmt.Sprint("k", i), memory: uint64(64 << w.random.IntN(4)),
			life: w.between(10*time.Second, w.c.Life), kind: kinds[w.random.IntN(len(kinds))]}
		owned := w.chance(0.2)
		w.at(when(), func() { w.ask4(x, owned, 0) })
	}
	for i := range w.c.Turns {
		t := &fleet.Turn{State: fleet.TurnWaits, Retry: w.chance(0.5)}
		w.at(when(), func() { w.db.turns[i], w.db.live = t, append(w.db.live, i) })
	}
}

// ask4 asks for a sandbox until there is an answer, or the client gives up.
func (w *world) ask4(x *claim, owned bool, tries int) {
	if tries > 20 {
		return
	}
	c := w.controllers[(len(x.key)+tries)%2]
	w.call(w.client, &c.host, 10*time.Second, func(reply func(any)) { w.claim(c, x, reply) },
		func(v any) {
			id, _ := v.(string)
			switch {
			case v == nil:
				w.own(w.client, w.between(0, time.Second), func() { w.ask4(x, owned, tries+1) })
			case id == "": // no room: another request
				y := *x
				y.key += "'"
				w.own(w.client, w.between(5*time.Second, 20*time.Second), func() { w.ask4(&y, owned, tries+1) })
			default:
				w.oracle.grants(w, x.key, id)
				if owned {
					w.own(w.client, w.between(time.Second, x.life), func() { w.api.gone = append(w.api.gone, x.key) })
				}
				if w.chance(0.1) { // a client that lost the answer asks again
					w.own(w.client, w.between(0, 5*time.Second), func() { w.again(x) })
				}
			}
		})
}

func (w *world) again(x *claim) {
	c := w.controllers[w.random.IntN(2)]
	w.call(w.client, &c.host, 10*time.Second, func(reply func(any)) { w.claim(c, x, reply) },
		func(v any) {
			if id, _ := v.(string); id != "" {
				w.oracle.grants(w, x.key, id)
			}
		})
}

// watchObjects tells the controllers which objects were deleted.
func (w *world) watchObjects() {
	w.call(&w.operator.host, &w.api.host, 5*time.Second, func(reply func(any)) {
		reply(w.api.gone[:len(w.api.gone):len(w.api.gone)])
	}, func(v any) {
		all, _ := v.([]string)
		for _, key := range all {
			if w.operator.told[key] {
				continue
			}
			for _, c := range w.controllers {
				w.call(&w.operator.host, &c.host, 5*time.Second,
					func(reply func(any)) { w.unwanted(c, key, reply) },
					func(v any) { w.operator.told[key] = w.operator.told[key] || v == true })
			}
		}
	})
}

// fault breaks something now and then.
func (w *world) fault() {
	w.after(time.Duration(w.random.ExpFloat64()*float64(w.c.Every)), func() {
		if w.calm {
			return
		}
		w.breakOne()
		w.fault()
	})
}

func (w *world) breakOne() {
	n := w.nodes[w.random.IntN(len(w.nodes))]
	c := w.controllers[w.random.IntN(2)]
	d := w.between(5*time.Second, 90*time.Second)
	switch w.random.IntN(15) {
	case 0, 1:
		if !n.down {
			w.end(n, w.chance(0.5), d)
		}
	case 2, 3:
		w.note("%s is parted from all for %s", n.name, d)
		for _, h := range []*host{&w.controllers[0].host, &w.controllers[1].host, &w.db.host, &w.bucket.host} {
			w.part(&n.host, h, d)
		}
	case 4:
		w.note("%s is parted from the database for %s", n.name, d)
		w.part(&n.host, &w.db.host, d)
	case 5, 6:
		if !n.down && !n.asleep {
			w.sleep(n, d, w.chance(0.3))
		}
	case 7:
		n.wall += w.between(-time.Hour, time.Hour)
		w.note("the wall clock of %s jumps", n.name)
	case 8:
		if c.down {
			return
		}
		w.note("%s restarts after %s", c.name, d)
		c.down, c.life = true, c.life+1
		w.after(d, func() { c.down = false; w.startController(c) })
	case 9:
		w.note("%s is parted from the database for %s", c.name, d)
		w.part(&c.host, &w.db.host, d)
	case 10:
		w.note("%s is parted from the nodes for %s", c.name, d)
		for _, n := range w.nodes[:len(w.nodes)/2] {
			w.part(&c.host, &n.host, d)
		}
	case 11:
		if !w.db.down {
			w.crash(d / 4)
		}
	case 12:
		b := w.bucket
		b.away, b.full, b.throttles = w.chance(0.3), w.chance(0.3), w.random.Float64()
		w.db.slow = w.between(0, 200*time.Millisecond)
		w.after(d, func() { b.away, b.full, b.throttles, w.db.slow = false, false, 0, 0 })
	case 13:
		if still := w.chance(0.5); !c.down && !c.asleep {
			w.note("%s sleeps for %s (its clock stands still: %t)", c.name, d, still)
			c.asleep, c.wakes = true, w.now+d
			w.at(c.wakes, func() {
				c.asleep = false
				if still {
					c.off += d
				}
			})
		}
	case 14:
		if w.chance(0.5) {
			w.part(&w.operator.host, &w.api.host, 10*time.Minute)
		}
		n.drains = !n.drains
		if n.drains { // it is replaced by the next version
			w.after(d, func() { n.drains, n.version = false, "2" })
		}
	}
}

// heal ends all faults.
func (w *world) heal() {
	w.note("all faults end")
	w.calm = true
	clear(w.cuts)
	b := w.bucket
	b.away, b.full, b.throttles, w.db.slow = false, false, 0, 0
}
