package sim

import (
	"time"

	"turnstone.dev/turnstone/internal/fleet"
)

// A row is the record of a sandbox.
type row struct {
	id, key, node string
	memory        uint64
	life          time.Duration
	kind          fleet.Kind
	state         fleet.SandboxState
	created       time.Duration // by the database's clock
	slept         time.Duration // how long the node's computer had slept by then
	expires       time.Duration // when life and bound are over, by the same
}

// A database keeps rows. A durable write is on its disk before it is answered; another may be lost
// when the database crashes, with all that came after it that is not durable.
type database struct {
	host
	undo   []func() // of writes that are not on the disk, the newest last
	slow   time.Duration
	leader fleet.Turn // the controllers' lease
	rows   map[string]*row
	keys   map[string]*row
	byNode map[string]map[string]*row
	nodes  map[string]fleet.Report
	turns  map[int]*fleet.Turn
	live   []int // turns that have not ended, as far as sweeps know
}

// write changes the database and answers. f returns how the change is undone.
func (w *world) write(durable bool, reply func(any), f func() (answer any, undo func())) {
	d := w.db
	life := d.life
	w.after(w.between(time.Millisecond, 5*time.Millisecond)+d.slow, func() {
		if d.down || d.life != life {
			return
		}
		answer, undo := f()
		if undo != nil {
			d.undo = append(d.undo, undo)
		}
		switch {
		case durable && w.rules.durable:
			d.undo = d.undo[:0] // the log is written in its order
		case durable:
			w.after(time.Second, func() { d.undo = d.undo[:0] })
		}
		reply(answer)
	})
}

// crash loses what is not on the disk.
func (w *world) crash(d time.Duration) {
	w.note("the database crashes, and is back after %s", d)
	w.db.down = true
	w.db.life++
	for i := len(w.db.undo) - 1; i >= 0; i-- {
		w.db.undo[i]()
	}
	w.db.undo = nil
	w.after(d, func() { w.db.down = false })
}

// leads reports whether a controller's fence is the newest.
func (w *world) leads(fence uint64) bool {
	return !w.rules.leaderFence || w.db.leader.Fence == fence && w.db.leader.State == fleet.TurnRuns
}

// set moves a row by an event, and returns how to undo it.
func (w *world) set(r *row, e fleet.SandboxEvent) func() {
	if r == nil {
		return nil // a crash has lost it, in a broken variant
	}
	old := r.state
	to, ok := fleet.SandboxTable.Next(old, e)
	if !ok || to == old {
		return nil
	}
	r.state = to
	if to == fleet.SandboxEnded {
		delete(w.db.byNode[r.node], r.id)
	} else {
		w.db.byNode[r.node][r.id] = r
	}
	return func() { r.state = old; w.db.byNode[r.node][r.id] = r }
}

// insert makes a row, unless its key has one.
func (w *world) insert(fence uint64, new row) (any, func()) {
	d := w.db
	if !w.leads(fence) {
		return nil, nil
	}
	if old := d.keys[new.key]; old != nil && w.rules.idempotent {
		return old, nil
	}
	r := &new
	now := w.clock(&d.host)
	r.created, r.expires = now, now+r.life+fleet.Bound(r.life, callBound, look)
	r.state, r.slept = fleet.SandboxAsked, w.byName[r.node].slept
	d.rows[r.id], d.keys[r.key] = r, r
	if d.byNode[r.node] == nil {
		d.byNode[r.node] = map[string]*row{}
	}
	d.byNode[r.node][r.id] = r
	return r, func() { delete(d.rows, r.id); delete(d.keys, r.key); delete(d.byNode[r.node], r.id) }
}

// commit is the transaction of a turn's end.
func (w *world) commit(n *node, turn int, fence uint64, objects []string) (any, func()) {
	t := w.db.turns[turn]
	if t.State == fleet.TurnCommitted && t.Fence == fence {
		return true, nil // the first answer was lost
	}
	old := *t
	if w.rules.commit(t, fence) != "" {
		return false, nil
	}
	w.oracle.committed(w, n, turn, fence, objects)
	return true, func() { *t = old; w.oracle.uncommitted(turn) }
}

// reap ends the leases of turns whose time is over, and returns the turns that wait for a holder.
func (w *world) reap() (any, func()) {
	d := w.db
	var waits []int
	left := d.live[:0]
	for _, i := range d.live {
		t := d.turns[i]
		w.rules.reap(t, w.clock(&d.host))
		switch t.State {
		case fleet.TurnWaits:
			waits = append(waits, i)
			left = append(left, i)
		case fleet.TurnRuns:
			left = append(left, i)
		}
	}
	d.live = left
	return waits, nil
}

// A bucket keeps objects.
type bucket struct {
	host
	away, full bool
	throttles  float64
	objects    map[string]bool
}

// put stores an object. Answers come in any order.
func (w *world) put(name string, reply func(any)) {
	b := w.bucket
	if b.away {
		return
	}
	w.after(w.between(time.Millisecond, 200*time.Millisecond), func() {
		if b.full || w.chance(b.throttles) {
			reply(false)
			return
		}
		b.objects[name] = true
		reply(true)
	})
}

// An apiServer keeps the objects that own sandboxes.
type apiServer struct {
	host
	gone []string // keys of claims whose object was deleted
}

// An operator tells the controller what happened to objects.
type operator struct {
	host
	told map[string]bool
}
