package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/fleet"
)

// An oracle sees the whole fleet, and knows what must hold:
//
//   - a turn runs on one node at a time, begins at most twice, and twice only if its document says
//     retry; it commits once;
//   - a commit that was announced stays, and its objects are in the bucket;
//   - a sandbox is gone when its lease and the bound are over, whatever is parted or deleted;
//   - one key gets one sandbox, and one sandbox has one key;
//   - a node never has more than its memory, and rarely has to refuse what a controller asks;
//   - a node that has heard of a controller obeys no older one;
//   - when faults have ended, pools have their targets, no turn is open, and no node has a sandbox
//     that has ended.
type oracle struct {
	ids            int
	asked, refused int
	granted        map[string]string // keys and their sandboxes
	keys           map[string]string // sandboxes and their keys
	running        map[int]map[*node]bool
	begun          map[int]int
	commits        map[int]uint64 // turns and the fences of their commits
	told           map[int]uint64 // the same, announced
	objects        map[int][]string
	epochs         map[*node][2]uint64 // the newest fence that a life of a node has obeyed
	claims         int                 // that were granted
}

func newOracle() oracle {
	return oracle{granted: map[string]string{}, keys: map[string]string{},
		running: map[int]map[*node]bool{}, begun: map[int]int{}, commits: map[int]uint64{},
		told: map[int]uint64{}, objects: map[int][]string{}, epochs: map[*node][2]uint64{}}
}

func (o *oracle) newID() string {
	o.ids++
	return fmt.Sprintf("sb%07d", o.ids)
}

// began notes that the database gave the lease of a turn to a holder.
func (o *oracle) began(w *world, turn int) {
	o.begun[turn]++
	if n := o.begun[turn]; n > fleet.MaxAttempts || n > 1 && !w.db.turns[turn].Retry {
		w.broken("turn %d begins for the %d. time", turn, n)
	}
}

// runs notes that a node runs a turn. One that sleeps runs nothing.
func (o *oracle) runs(w *world, n *node, turn int) {
	w.note("%s runs turn %d", n.name, turn)
	o.elsewhere(w, n, turn)
	if o.running[turn] == nil {
		o.running[turn] = map[*node]bool{}
	}
	o.running[turn][n] = true
}

// elsewhere looks whether a turn of a node runs on another node, too. A computer whose clock stood
// still while it slept does not know that its lease is over: only the fence keeps its commit away.
func (o *oracle) elsewhere(w *world, n *node, turn int) {
	others := slices.SortedFunc(maps.Keys(o.running[turn]), func(a, b *node) int {
		return strings.Compare(a.name, b.name)
	})
	for _, other := range others {
		x := other.turns[turn]
		if n.turns[turn].slept {
			continue
		}
		if other != n && !other.asleep && (x == nil || !x.slept) {
			w.broken("turn %d runs on %s and on %s", turn, other.name, n.name)
		}
	}
}

func (o *oracle) stops(n *node, turn int) { delete(o.running[turn], n) }

// wakes looks at what a node still runs after a sleep.
func (o *oracle) wakes(w *world, n *node) {
	for _, turn := range slices.Sorted(maps.Keys(n.turns)) {
		o.elsewhere(w, n, turn)
	}
}

func (o *oracle) committed(w *world, n *node, turn int, fence uint64, objects []string) {
	w.note("turn %d is committed with fence %d", turn, fence)
	if old, twice := o.commits[turn]; twice {
		w.broken("turn %d is committed with fence %d, and was with %d", turn, fence, old)
	}
	if held := w.db.turns[turn].Fence; held != fence {
		w.broken("turn %d is committed with fence %d, and another holder has %d", turn, fence, held)
	}
	if holder := w.db.turns[turn].Holder; holder != n.name {
		w.broken("turn %d is committed by %s, and %q has the lease", turn, n.name, holder)
	}
	o.commits[turn], o.objects[turn] = fence, objects
	for _, name := range objects {
		if !w.bucket.objects[name] {
			w.broken("turn %d is committed, and its object %s is not stored", turn, name)
		}
	}
}

func (o *oracle) uncommitted(turn int) { delete(o.commits, turn) }

func (o *oracle) announced(w *world, turn int, fence uint64) { o.told[turn] = fence }

func (o *oracle) obeyed(w *world, n *node, fence uint64) {
	last := o.epochs[n]
	if last[0] != uint64(n.life) {
		last = [2]uint64{uint64(n.life), 0}
	}
	if fence < last[1] {
		w.broken("%s obeys the controller with fence %d, and has obeyed %d", n.name, fence, last[1])
	}
	o.epochs[n] = [2]uint64{uint64(n.life), max(fence, last[1])}
}

// filled looks at the memory of a node after it has got a sandbox.
func (o *oracle) filled(w *world, n *node) {
	if used := n.used() + uint64(n.waits())*warmMemory; used > w.c.Capacity {
		w.broken("%s has machines of %d MiB, and %d MiB", n.name, used, w.c.Capacity)
	}
}

// born looks for the sandbox again when its lease and the bound are over.
func (o *oracle) born(w *world, n *node, r *row) {
	if key, has := o.keys[r.id]; has && key != r.key {
		w.broken("sandbox %s is for %s and %s", r.id, key, r.key)
	}
	o.keys[r.id] = r.key
	w.note("%s makes %s, which may be there for %s", n.name, r.id, r.life)
	age := w.clock(&w.db.host) - r.created
	// A request may lie in the buffers of a computer that sleeps, and its clock may stand still.
	counted := n.slept - r.slept
	left := r.life + fleet.Bound(r.life, callBound, look) - age + counted
	var check func()
	check = func() {
		switch {
		case n.boxes[r.id] == nil:
		case n.asleep:
			w.at(n.wakes+2*look, check)
		case n.slept-r.slept > counted:
			d := n.slept - r.slept - counted
			counted += d
			w.after(d+look, check)
		default:
			w.broken("%s still has %s, whose lease of %s ended long ago", n.name, r.id, r.life)
		}
	}
	w.after(left, check)
}

// grants notes the answer to a claim.
func (o *oracle) grants(w *world, key, id string) {
	if old := o.granted[key]; old != "" && old != id {
		w.broken("claim %s got %s and %s", key, old, id)
	} else if old == "" {
		o.claims++
	}
	o.granted[key] = id
}

// end checks what must hold after a quiet time.
func (o *oracle) end(w *world) {
	for _, turn := range slices.Sorted(maps.Keys(o.told)) {
		fence := o.told[turn]
		if t := w.db.turns[turn]; t.State != fleet.TurnCommitted || o.commits[turn] != fence {
			w.broken("turn %d was announced as committed, and is lost", turn)
		}
	}
	for _, turn := range slices.Sorted(maps.Keys(w.db.turns)) {
		t := w.db.turns[turn]
		if t.State == fleet.TurnWaits || t.State == fleet.TurnRuns {
			w.broken("turn %d is still %s (attempt %d)", turn, t.State, t.Attempt)
		}
	}
	for _, n := range w.nodes {
		for _, id := range slices.Sorted(maps.Keys(n.boxes)) {
			if r := w.db.rows[id]; n.boxes[id].ready && (r == nil || r.state.Removes()) {
				w.broken("%s has %s, which has ended", n.name, id)
			}
		}
	}
	if limit := o.asked/8 + 10; o.refused > limit {
		w.broken("nodes refused %d of %d sandboxes for want of memory: claims herd", o.refused, o.asked)
	}
	o.pools(w)
}

func (o *oracle) pools(w *world) {
	var leader *controller
	for _, c := range w.controllers {
		if w.leading(c) {
			leader = c
		}
	}
	if leader == nil {
		w.broken("no controller leads")
		return
	}
	for _, k := range w.kinds() {
		shares, waits := 0, 0
		for _, n := range w.nodes {
			if !n.down {
				shares += n.shares[k]
				waits += n.warm[k]
			}
		}
		if want := leader.pools.Target(k); shares != want || waits < want-want/5 || waits > want {
			w.broken("of %s, %d should wait, nodes were told %d, and %d wait", k.Template, want, shares, waits)
		}
	}
}

// A claim is a client's wish for a sandbox.
type claim struct {
	key    string
	memory uint64
	life   time.Duration
	kind   fleet.Kind
}
