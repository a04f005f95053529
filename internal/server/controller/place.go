package controller

import (
	"slices"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/fair"
)

// A need is what a new object wants of its node.
type need struct {
	tenant    string      // of a new sandbox, whose creation costs the node work; else ""
	node      string      // the only node that will do, such as the one of the session; or ""
	machine   *v1.Machine // nil: none
	substrate string      // may be empty
	template  string      // preferably built already; may be empty
}

// A machine whose size is not in the request counts as this much, until the node reports it.
const (
	usualCPUs   = 1
	usualMemory = 512 << 20
)

// place returns the name of the node for a need, and counts the machine there: the node that has
// to be, else of those where it fits the one with the template, else the least loaded.
func (r *registry) place(n need) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *node
	var bestScore float64
	var ups, able, large int
	for _, x := range r.all {
		if n.node != "" && x.name != n.node || !x.up {
			continue
		}
		ups++
		if !x.offers(n.substrate) {
			continue
		}
		able++
		load, possible := x.load(n.machine)
		if !possible {
			continue
		}
		large++
		score := load
		if t := x.templates[n.template]; t == nil ||
			t.State != v1.TemplateState_TEMPLATE_STATE_BUILT {
			score += 2 // a load is at most 1
		}
		if !x.synced {
			score += 4 // perhaps it does not answer
		}
		if load <= 1 && x.mayMake(n.tenant) && (best == nil || score < bestScore ||
			score == bestScore && x.name < best.name) {
			best, bestScore = x, score
		}
	}
	if best == nil {
		return "", unplaced(n, ups, able, large)
	}
	if n.tenant != "" {
		best.making = append(best.making, making{n.tenant, time.Now()})
	}
	if m := n.machine; m != nil {
		best.placed = append(best.placed, placement{time.Now(), max(m.Cpus, usualCPUs),
			orUsual(m.Memory), m.Disk})
	}
	return best.name, nil
}

// unplaced says why there is no node: of those that are up, able ones have the substrate, and large
// ones would fit the machine if they were empty.
func unplaced(n need, ups, able, large int) error {
	fail := func(kind turnstone.Kind, wait time.Duration, hint, format string, args ...any) error {
		return &api.Status{RetryAfter: wait, Err: turnstone.Errorf("node.place", kind, "node",
			format, args...).WithHint(hint)}
	}
	switch {
	case ups == 0 && n.node != "":
		return lost(n.node)
	case ups == 0:
		return fail(turnstone.KindUnavailable, 5*time.Second, "wait until a node is there",
			"none is there")
	case able == 0:
		return fail(turnstone.KindUnavailable, 30*time.Second, "use another substrate, or none",
			"none has the substrate %s", n.substrate)
	case large == 0:
		return fail(turnstone.KindExhausted, 0, "ask for a smaller machine",
			"the machine is larger than each of them")
	}
	return fair.Full(fail(turnstone.KindExhausted, 5*time.Second,
		"try again when others have ended, or ask for a smaller machine",
		"the machine fits on none of them now"))
}

// A making is the creation of a sandbox that a node may work on.
type making struct {
	tenant string
	since  time.Time
}

// young is how long a creation counts as work of its node: one that takes longer waits for
// something else, such as a registry.
const young = 10 * time.Second

// mayMake reports whether the node may begin another sandbox of a tenant. What a tenant has it make
// at one time is bounded, so that a flood leaves room for others. The caller holds registry.mu.
func (n *node) mayMake(tenant string) bool {
	if tenant == "" {
		return true
	}
	n.making = slices.DeleteFunc(n.making, func(m making) bool { return time.Since(m.since) > young })
	count := 0
	for _, m := range n.making {
		if m.tenant == tenant {
			count++
		}
	}
	return count < max(2, int(n.info.GetCapacity().GetCpus()))
}

// made notes that a creation of a tenant has ended.
func (r *registry) made(name, tenant string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.all[name]; n != nil {
		if i := slices.IndexFunc(n.making, func(m making) bool { return m.tenant == tenant }); i >= 0 {
			n.making = slices.Delete(n.making, i, i+1)
		}
	}
}

func (n *node) offers(substrate string) bool {
	if substrate == "" {
		return true
	}
	for _, s := range n.info.GetSubstrates() {
		if s == substrate {
			return true
		}
	}
	return false
}

// load returns the share of the node that is in use with the machine m added, and whether m fits
// when nothing else is there. A capacity that the node does not name has no bound. The size of a
// machine that the request does not name counts for the load and not for what fits.
func (n *node) load(m *v1.Machine) (share float64, possible bool) {
	used := [3]uint64{uint64(n.info.GetUsed().GetCpus()), n.info.GetUsed().GetMemory(),
		n.info.GetUsed().GetDisk()}
	for _, p := range n.placed {
		used[0] += uint64(p.cpus)
		used[1] += p.memory
		used[2] += p.disk
	}
	shares := uint64(max(1, n.info.GetCpuShares()))
	capacity := [3]uint64{shares * uint64(n.info.GetCapacity().GetCpus()), n.info.GetCapacity().GetMemory(),
		n.info.GetCapacity().GetDisk()}
	want := [3]uint64{uint64(m.GetCpus()), m.GetMemory(), m.GetDisk()}
	for i, all := range capacity {
		if all == 0 {
			continue
		}
		if want[i] > all {
			return 0, false
		}
		if want[i] > 0 {
			share = max(share, float64(used[i]+want[i])/float64(all))
		} else if m != nil { // of a size that only the node knows: it refuses what does not fit
			share = max(share, min(1, float64(used[i])/float64(all)))
		}
	}
	if m == nil {
		share = min(1, share)
	}
	return share, true
}

func orUsual(memory uint64) uint64 {
	if memory == 0 {
		return usualMemory
	}
	return memory
}
