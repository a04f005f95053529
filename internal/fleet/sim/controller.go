package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/fleet"
)

// The times of the simulated server.
const (
	leaderLife  = 15 * time.Second
	turnLife    = 30 * time.Second
	callTimeout = 30 * time.Second
	askFor      = time.Minute // how long a sandbox may be asked for after its record
	look        = time.Second
	// callBound is how long after its record a node may begin to make a sandbox: the last call, its
	// time, and the delay of a message.
	callBound = askFor + callTimeout + 10*time.Second
)

// A controller decides, as long as it has the lease of controllers.
type controller struct {
	host
	fleet *fleet.Fleet
	pools *fleet.Pools
	fence uint64 // 0: it does not lead
	sent  time.Duration
	rooms map[string]fleet.Reservation
	given map[int]time.Duration // when a turn was given to a node
	heard map[string]time.Duration
}

// leading reports whether the controller may act, by its own clock.
func (w *world) leading(c *controller) bool {
	return c.fence != 0 && !c.down && w.clock(&c.host) < fleet.StopAt(c.sent, leaderLife)
}

func (w *world) startController(c *controller) {
	c.fence, c.fleet = 0, nil
	w.every(&c.host, leaderLife/5, func() { w.lead(c) })
	w.every(&c.host, 5*time.Second, func() { w.sweep(c) })
	w.lead(c)
}

// lead takes or renews the lease of controllers.
func (w *world) lead(c *controller) {
	sent, fence := w.clock(&c.host), c.fence
	if fence != 0 && !w.leading(c) {
		w.note("%s leads no more", c.name)
		c.fence, fence = 0, 0
	}
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) {
			l, now := &w.db.leader, w.clock(&w.db.host)
			if fence != 0 {
				return [2]any{fence, l.Renew(now, leaderLife, fence) == ""}, nil
			}
			if l.State == fleet.TurnRuns && now >= l.Until {
				l.State = fleet.TurnWaits
			}
			f, why := l.Begin(now, leaderLife, c.name)
			return [2]any{f, why == ""}, nil
		})
	}, func(v any) {
		a, _ := v.([2]any)
		switch {
		case v == nil:
		case a[1] != true:
			if fence != 0 && c.fence == fence {
				c.fence = 0
			}
		case fence != 0:
			c.sent = max(c.sent, sent)
		case c.fence == 0:
			c.sent = sent
			w.load(c, a[0].(uint64))
		}
	})
}

// load begins to lead with what the database has.
func (w *world) load(c *controller, fence uint64) {
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(false, reply, func() (any, func()) {
			var all []row
			for _, id := range slices.Sorted(maps.Keys(w.db.rows)) {
				if r := w.db.rows[id]; r.state != fleet.SandboxEnded {
					all = append(all, *r)
				}
			}
			return [2]any{all, maps.Clone(w.db.nodes)}, nil
		})
	}, func(v any) {
		if v == nil {
			return
		}
		now := w.clock(&c.host)
		a := v.([2]any)
		c.fence = fence
		w.note("%s leads with fence %d", c.name, fence)
		c.fleet = fleet.New(fleet.Options{Version: "2", Seed: w.c.Seed, Times: fleet.Times{
			Suspect: 10 * time.Second, Lost: 20 * time.Second, Settle: 10 * time.Second,
			Young: 10 * time.Second}})
		c.pools = fleet.NewPools(w.pools(), nil)
		c.rooms, c.given, c.heard = map[string]fleet.Reservation{}, map[int]time.Duration{}, map[string]time.Duration{}
		nodes := a[1].(map[string]fleet.Report)
		for _, name := range slices.Sorted(maps.Keys(nodes)) {
			c.fleet.Remember(now, name, nodes[name])
		}
		for _, r := range a[0].([]row) {
			if !w.rules.remembers {
				break
			}
			need := w.need(r.memory, r.kind)
			need.Node = r.node
			if room, v := c.fleet.Place(now, need); v == fleet.Placed {
				c.fleet.Done(now, room)
			}
		}
	})
}

func (w *world) need(memory uint64, k fleet.Kind) fleet.Need {
	m := fleet.Resources{Memory: memory}
	return fleet.Need{Tenant: k.Tenant, Works: true, Machine: true, Want: m, Counts: m, Kind: k,
		Template: k.Template}
}

// registration takes the registration of a node.
func (w *world) registration(c *controller, n *node, r fleet.Report, reply func(any)) {
	if !w.leading(c) {
		return
	}
	now := w.clock(&c.host)
	before, after := c.fleet.Register(now, n.name, r)
	if before == fleet.Unknown {
		fence := c.fence
		w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
			w.write(true, reply, func() (any, func()) {
				if w.leads(fence) {
					w.db.nodes[n.name] = r
				}
				return nil, nil
			})
		}, func(any) {})
	}
	if after == fleet.Back || !c.fleet.Synced(n.name) || now-c.heard[n.name] > 30*time.Second {
		w.reconcile(c, n)
	}
	shares := map[fleet.Kind]int{}
	for _, s := range c.pools.Shares(n.name) {
		shares[s.Kind] = s.Count
	}
	reply([2]any{c.fence, shares})
}

// reconcile compares a node's list with the records.
func (w *world) reconcile(c *controller, n *node) {
	c.heard[n.name] = w.clock(&c.host)
	fence := c.fence
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) { // the mark
		w.write(false, reply, func() (any, func()) {
			var there []string
			for id, r := range w.db.byNode[n.name] {
				if r.state != fleet.SandboxAsked {
					there = append(there, id)
				}
			}
			slices.Sort(there)
			return there, nil
		})
	}, func(there any) {
		if there == nil {
			return
		}
		w.call(&c.host, &n.host, 5*time.Second, func(reply func(any)) {
			reply(slices.Sorted(maps.Keys(n.boxes)))
		}, func(list any) {
			if list != nil {
				w.agree(c, n, fence, there.([]string), list.([]string))
			}
		})
	})
}

func (w *world) agree(c *controller, n *node, fence uint64, there, list []string) {
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) {
			if !w.leads(fence) {
				return nil, nil
			}
			var remove []string
			for _, id := range there {
				if _, has := slices.BinarySearch(list, id); !has {
					w.set(w.db.rows[id], fleet.SandboxVanished)
				}
			}
			for _, id := range list {
				r := w.db.rows[id]
				if r != nil {
					w.set(r, fleet.SandboxSeen)
				}
				if r == nil || r.state.Removes() {
					remove = append(remove, id)
				}
			}
			return remove, nil
		})
	}, func(v any) {
		if v == nil || c.fence != fence {
			return
		}
		for _, id := range v.([]string) {
			w.discard(c, n, id)
		}
		c.fleet.Sync(n.name, true)
	})
}

// discard has a node remove a sandbox.
func (w *world) discard(c *controller, n *node, id string) {
	fence := c.fence
	w.call(&c.host, &n.host, callTimeout, func(reply func(any)) {
		if w.obeys(n, fence) {
			w.remove(n, id)
			reply(true)
		}
	}, func(v any) {
		if v == nil {
			return
		}
		w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
			w.write(true, reply, func() (any, func()) {
				if r := w.db.rows[id]; r != nil && w.leads(fence) {
					w.set(r, fleet.SandboxVanished)
				}
				return true, nil
			})
		}, func(any) {})
	})
}

// sweep is what the leading controller does now and then.
func (w *world) sweep(c *controller) {
	if !w.leading(c) {
		return
	}
	now, fence := w.clock(&c.host), c.fence
	c.fleet.Tick(now)
	nodes := c.fleet.Open()
	if !w.rules.forgets { // a broken variant: lost nodes keep their shares
		nodes = nodes[:0:0]
		for _, n := range w.nodes {
			nodes = append(nodes, n.name)
		}
	}
	c.pools.Tick(now, 5*time.Second, nodes)
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, w.reap)
	}, func(v any) {
		waits, _ := v.([]int)
		for _, turn := range waits {
			if w.leading(c) && (c.given[turn] == 0 || w.clock(&c.host)-c.given[turn] > 10*time.Second) {
				w.dispatch(c, turn)
			}
		}
	})
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) { return w.expire(fence), nil })
	}, func(v any) {
		all, _ := v.([]*row)
		for _, r := range all {
			if n := w.byName[r.node]; c.fence == fence && c.fleet.State(r.node).Answers() {
				w.discard(c, n, r.id)
			}
		}
	})
}

// expire ends the rows whose lease and bound are over, and returns those that are to be removed.
func (w *world) expire(fence uint64) (ending []*row) {
	if !w.leads(fence) {
		return nil
	}
	now := w.clock(&w.db.host)
	for _, n := range w.nodes {
		for _, r := range w.db.byNode[n.name] {
			if now > r.expires {
				w.set(r, fleet.SandboxLeaseEnds)
			} else if r.state == fleet.SandboxEnding {
				ending = append(ending, r)
			}
		}
	}
	slices.SortFunc(ending, func(a, b *row) int { return strings.Compare(a.id, b.id) })
	return ending
}

// dispatch gives a turn that waits to a node.
func (w *world) dispatch(c *controller, turn int) {
	now, fence := w.clock(&c.host), c.fence
	room, v := c.fleet.Place(now, fleet.Need{})
	if v != fleet.Placed {
		return
	}
	c.given[turn] = now
	n := w.byName[room.Node]
	w.send(&c.host, &n.host, func() {
		if w.obeys(n, fence) {
			w.beginTurn(n, turn)
		}
	})
}

// claim grants a sandbox. The answer is an ID, "" if there is no room, or nothing.
func (w *world) claim(c *controller, x *claim, reply func(any)) {
	if !w.leading(c) {
		return
	}
	now, fence := w.clock(&c.host), c.fence
	c.pools.Arrive(now, x.kind)
	room, v := c.fleet.Place(now, w.need(x.memory, x.kind))
	if !w.rules.reserves {
		c.fleet.Drop(room)
	}
	id := w.oracle.newID()
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) {
			if v != fleet.Placed {
				if r := w.db.keys[x.key]; r != nil {
					return r, nil
				}
				return "", nil
			}
			return w.insert(fence, row{id: id, key: x.key, node: room.Node, memory: x.memory,
				life: x.life, kind: x.kind})
		})
	}, func(a any) {
		r, made := a.(*row)
		if !made || r.id != id {
			c.fleet.Drop(room)
		}
		switch {
		case a == "":
			reply("")
		case made && c.fence == fence:
			w.ask(c, r, room, reply)
		}
	})
}

// ask has a node make the sandbox of a record.
func (w *world) ask(c *controller, r *row, room fleet.Reservation, reply func(any)) {
	if r.state.Removes() || w.clock(&w.db.host) > r.created+askFor && r.state == fleet.SandboxAsked {
		c.fleet.Drop(room)
		reply("")
		return
	}
	n, fence := w.byName[r.node], c.fence
	w.oracle.asked++
	w.call(&c.host, &n.host, callTimeout, func(answer func(any)) {
		if w.obeys(n, fence) {
			w.create(n, r, answer)
		}
	}, func(v any) {
		c.fleet.Done(w.clock(&c.host), room)
		if v == nil {
			return
		}
		e := fleet.SandboxMade
		if v == false {
			e = fleet.SandboxRefused
			w.oracle.refused++
		}
		w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
			w.write(v == false, reply, func() (any, func()) {
				if w.leads(fence) {
					return true, w.set(r, e)
				}
				return nil, nil
			})
		}, func(any) {})
		if v == false {
			reply("")
			return
		}
		reply(r.id)
	})
}

// unwanted ends a sandbox whose owner is gone.
func (w *world) unwanted(c *controller, key string, reply func(any)) {
	if !w.leading(c) {
		return
	}
	fence := c.fence
	w.call(&c.host, &w.db.host, 5*time.Second, func(reply func(any)) {
		w.write(true, reply, func() (any, func()) {
			if !w.leads(fence) {
				return nil, nil
			}
			if r := w.db.keys[key]; r != nil {
				w.set(r, fleet.SandboxUnwanted)
			}
			return true, nil
		})
	}, func(v any) {
		if v != nil {
			reply(true)
		}
	})
}
