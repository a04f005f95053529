package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"turnstone.dev/turnstone/internal/fleet"
)

// A node owns the sandboxes and turns of a computer.
type node struct {
	host
	epoch   uint64 // of the newest controller that it has heard of
	version string
	drains  bool
	boxes   map[string]*box // also those that are being made
	ended   map[string]bool // sandboxes that were there: on its disk
	turns   map[int]*run
	shares  map[fleet.Kind]int
	warm    map[fleet.Kind]int // sandboxes that wait
	filling map[fleet.Kind]int
	slept   time.Duration // how long its computer slept
	stills  int           // sleeps in which its clock stood still
}

// A box is a sandbox on a node.
type box struct {
	memory  uint64
	ready   bool
	answers []func(any)
	ends    time.Duration // by the node's clock
}

// A run is a turn on a node.
type run struct {
	fence   uint64
	sent    time.Duration // the last request that extended the lease
	answer  time.Duration // its answer
	renews  bool
	done    time.Duration
	stored  int
	commits bool
	slept   bool // the computer slept, and its clock stood still
}

const warmMemory = 64

func (w *world) startNode(n *node) {
	w.every(&n.host, w.c.Register, func() { w.register(n) })
	w.own(&n.host, w.between(0, w.c.Register), func() { w.register(n) })
}

// used is the memory of the sandboxes of a node.
func (n *node) used() (sum uint64) {
	for _, b := range n.boxes {
		sum += b.memory
	}
	return sum
}

func (w *world) register(n *node) {
	r := fleet.Report{Capacity: fleet.Resources{Memory: w.c.Capacity}, Makes: 8, Version: n.version,
		Used: fleet.Resources{Memory: n.used()}, Drains: n.drains, Warm: maps.Clone(n.warm)}
	for _, c := range w.controllers {
		w.call(&n.host, &c.host, 5*time.Second, func(reply func(any)) {
			w.registration(c, n, r, reply)
		}, func(v any) {
			if a, ok := v.([2]any); ok && w.obeys(n, a[0].(uint64)) {
				n.shares = a[1].(map[fleet.Kind]int)
				w.fill(n)
			}
		})
	}
}

// obeys reports whether a node does what a controller says: not if a newer one has spoken.
func (w *world) obeys(n *node, fence uint64) bool {
	if fence < n.epoch && w.rules.leaderFence {
		return false
	}
	w.oracle.obeyed(w, n, fence)
	n.epoch = max(n.epoch, fence)
	return true
}

// fill makes and ends sandboxes that wait.
func (w *world) fill(n *node) {
	for _, k := range w.kinds() {
		n.warm[k] = min(n.warm[k], n.shares[k])
		for n.warm[k]+n.filling[k] < n.shares[k] {
			n.filling[k]++
			w.own(&n.host, w.between(50*time.Millisecond, 2*time.Second), func() {
				n.filling[k]--
				if n.warm[k] < n.shares[k] && n.used()+uint64(n.waits()+1)*warmMemory <= w.c.Capacity {
					n.warm[k]++
				}
			})
		}
	}
}

func (n *node) waits() (sum int) {
	for _, c := range n.warm {
		sum += c
	}
	return sum
}

// create makes a sandbox once, however often it is asked for.
func (w *world) create(n *node, r *row, answer func(any)) {
	if b := n.boxes[r.id]; b != nil {
		if b.ready {
			answer(true)
		} else {
			b.answers = append(b.answers, answer)
		}
		return
	}
	if n.ended[r.id] && w.rules.once {
		answer(true) // the request was late, or came twice
		return
	}
	if !w.rules.admits(w, n, r.memory) {
		answer(false)
		return
	}
	b := &box{memory: r.memory, answers: []func(any){answer}}
	n.boxes[r.id] = b
	for _, k := range w.kinds() { // those that wait end for others
		for n.warm[k] > 0 && n.used()+uint64(n.waits())*warmMemory > w.c.Capacity {
			n.warm[k]--
		}
	}
	w.oracle.filled(w, n)
	b.ends = w.rules.clock(w, n) + r.life
	w.expireAt(n, r.id, b)
	takes := w.between(100*time.Millisecond, 2*time.Second)
	if n.warm[r.kind] > 0 {
		n.warm[r.kind]--
		takes = time.Millisecond
	}
	w.oracle.born(w, n, r)
	w.own(&n.host, takes, func() {
		if n.boxes[r.id] != b {
			return
		}
		b.ready = true
		for _, f := range b.answers {
			f(true)
		}
		b.answers = nil
		w.fill(n)
	})
}

// expireAt ends a sandbox at the end of its lease: its holder does it, which is a process of its own.
func (w *world) expireAt(n *node, id string, b *box) {
	if !w.rules.nodeEnds {
		return
	}
	var check func()
	check = func() {
		left := b.ends - w.rules.clock(w, n)
		switch {
		case n.boxes[id] != b:
		case n.asleep:
			w.at(n.wakes, check)
		case left <= 0:
			w.remove(n, id)
		default:
			w.after(max(time.Duration(float64(left)/n.rate), look/2), check)
		}
	}
	w.after(time.Duration(float64(b.ends-w.rules.clock(w, n))/n.rate), check)
}

func (w *world) remove(n *node, id string) {
	if n.boxes[id] != nil {
		w.note("%s removes %s", n.name, id)
		delete(n.boxes, id)
		n.ended[id] = true
	}
}

// beginTurn asks for the lease of a turn, and runs it.
func (w *world) beginTurn(n *node, turn int) {
	if n.turns[turn] != nil {
		return
	}
	sent, stills := w.rules.clock(w, n), n.stills
	w.call(&n.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) {
			fence, why := w.db.turns[turn].Begin(w.clock(&w.db.host), turnLife, n.name)
			if why != "" {
				return nil, nil
			}
			w.note("%s has turn %d with fence %d", n.name, turn, fence)
			w.oracle.began(w, turn)
			return fence, nil
		})
	}, func(v any) {
		fence, ok := v.(uint64)
		if !ok {
			return
		}
		x := &run{fence: fence, sent: sent, slept: n.stills != stills, answer: w.rules.clock(w, n),
			done: w.clock(&n.host) + w.between(time.Second, 90*time.Second)}
		if w.rules.clock(w, n) >= w.rules.stopAt(x) {
			return
		}
		n.turns[turn] = x
		w.oracle.runs(w, n, turn)
		w.work(n, turn, x)
	})
}

// work looks after a turn that runs, again and again.
func (w *world) work(n *node, turn int, x *run) {
	if n.turns[turn] != x {
		return
	}
	now := w.rules.clock(w, n)
	switch {
	case now >= w.rules.stopAt(x):
		w.note("%s stops turn %d: its lease ends", n.name, turn)
		w.stopTurn(n, turn, x)
		return
	case now >= fleet.RenewAt(x.sent, turnLife) && !x.renews:
		w.renew(n, turn, x)
	}
	if w.clock(&n.host) >= x.done && !x.commits {
		w.finish(n, turn, x)
	}
	w.own(&n.host, 500*time.Millisecond, func() { w.work(n, turn, x) })
}

func (w *world) renew(n *node, turn int, x *run) {
	x.renews = true
	sent := w.rules.clock(w, n)
	w.call(&n.host, &w.db.host, 3*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) {
			return w.db.turns[turn].Renew(w.clock(&w.db.host), turnLife, x.fence) == "", nil
		})
	}, func(v any) {
		x.renews = false
		switch {
		case v == true:
			x.sent, x.answer = sent, w.rules.clock(w, n)
		case v == false && w.rules.holderStops:
			w.stopTurn(n, turn, x)
		}
	})
}

// parts is the number of objects of a turn.
const parts = 3

// finish stores a turn's objects, and commits when all of them are stored.
func (w *world) finish(n *node, turn int, x *run) {
	x.commits = true
	var names []string
	for i := range parts {
		names = append(names, fmt.Sprint(turn, "/", x.fence, "/", i))
	}
	for _, name := range names {
		var try func()
		try = func() {
			w.call(&n.host, &w.bucket.host, 2*time.Second, func(reply func(any)) { w.put(name, reply) },
				func(v any) {
					if n.turns[turn] != x {
						return
					}
					if v != true {
						w.own(&n.host, w.between(100*time.Millisecond, time.Second), try)
						return
					}
					x.stored++
					if x.stored == w.rules.stores {
						w.commitTurn(n, turn, x, names)
					}
				})
		}
		try()
	}
}

func (w *world) commitTurn(n *node, turn int, x *run, names []string) {
	w.call(&n.host, &w.db.host, 3*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) { return w.commit(n, turn, x.fence, names) })
	}, func(v any) {
		switch {
		case n.turns[turn] != x:
		case v == nil:
			w.own(&n.host, 200*time.Millisecond, func() { w.commitTurn(n, turn, x, names) })
		default:
			if v == true {
				w.oracle.announced(w, turn, x.fence)
			} else {
				w.note("%s may not commit turn %d with fence %d", n.name, turn, x.fence)
			}
			w.stopTurn(n, turn, x)
		}
	})
}

func (w *world) stopTurn(n *node, turn int, x *run) {
	if n.turns[turn] == x {
		delete(n.turns, turn)
		w.oracle.stops(n, turn)
	}
}

// end ends the node's process, with its turns; the computer also ends sandboxes.
func (w *world) end(n *node, computer bool, d time.Duration) {
	w.note("%s ends for %s (computer: %t)", n.name, d, computer)
	n.down = true
	n.life++
	for _, turn := range slices.Sorted(maps.Keys(n.turns)) {
		w.stopTurn(n, turn, n.turns[turn])
	}
	for id, b := range n.boxes {
		if computer || !b.ready {
			delete(n.boxes, id)
			n.ended[id] = true
		}
	}
	clear(n.warm)
	clear(n.filling)
	w.after(d, func() {
		if computer {
			n.off = w.now
			n.wall = w.between(-time.Hour, time.Hour)
		}
		n.down, n.epoch = false, 0
		w.startNode(n)
	})
}

// sleep stops the computer for a while. Its monotonic clock counts the time, or stands still.
func (w *world) sleep(n *node, d time.Duration, still bool) {
	w.note("%s sleeps for %s (its clock stands still: %t)", n.name, d, still)
	n.asleep, n.wakes = true, w.now+d
	n.slept += d
	for _, x := range n.turns {
		x.slept = x.slept || still
	}
	if still {
		n.stills++ // first of all that happens at that time
		w.at(n.wakes, func() { n.off += d })
	}
	w.at(n.wakes, func() {
		n.asleep = false
		// what is over by the clock ends before anything else happens
		for _, turn := range slices.Sorted(maps.Keys(n.turns)) {
			if x := n.turns[turn]; w.rules.clock(w, n) >= w.rules.stopAt(x) {
				w.stopTurn(n, turn, x)
			}
		}
		w.oracle.wakes(w, n)
	})
}
