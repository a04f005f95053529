package fleet

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A Kind is what makes sandboxes that wait interchangeable.
type Kind struct{ Tenant, Template, Shape string }

// A Need is what a claim wants of its node.
type Need struct {
	Tenant string
	// Works says that the node has work with the claim now. What a tenant has a node make at one
	// time is bounded, so that a flood leaves room for others.
	Works bool
	// Node is the only node that will do, such as that of the session's state; empty: any.
	Node string
	// Avoid are nodes that will not do, whatever they have.
	Avoid []string
	// Machine is whether there is one. Want is what it asks for, whose zero fields only the node
	// knows; Counts is what it counts as until the node reports it.
	Machine      bool
	Want, Counts Resources
	Store        bool   // the bucket of sessions is used
	Substrate    string // empty: any
	Template     string // preferably built already; may be empty
	Kind         Kind   // preferably one that waits; may be zero
	// Version is the version that made the kept machine which is resumed; empty: none is.
	Version string
}

// A Verdict says why a claim got a node, or none.
type Verdict string

// The verdicts.
const (
	Placed       Verdict = "placed"
	Absent       Verdict = "no node answers"
	Avoided      Verdict = "the nodes that answer are to be avoided"
	Unable       Verdict = "no node has the substrate"
	NoStore      Verdict = "no node reaches the bucket of its sessions"
	WrongVersion Verdict = "the kept machine is of another version"
	TooLarge     Verdict = "no node is large enough"
	Full         Verdict = "no node has room now"
)

// A Reservation is room on a node for a claim whose machine the node's own numbers may not have.
type Reservation struct {
	ID     uint64 // greater than that of every earlier one
	Node   string
	tenant string
	works  bool
	kind   Kind
	counts Resources
	at     time.Duration
	done   bool
	ended  time.Duration
}

// A Fleet has the nodes, and the room that is reserved on them.
type Fleet struct {
	o       Options
	nodes   map[string]*node
	last    uint64
	random  *rand.Rand
	open    set            // registered, synced, of the wanted version
	built   map[string]set // by template, of open
	waiting map[Kind]set   // nodes with sandboxes that wait, of open
}

// New returns a fleet without nodes.
func New(o Options) *Fleet {
	return &Fleet{o: o, nodes: map[string]*node{}, random: rand.New(rand.NewPCG(o.Seed, 1)),
		open: newSet(), built: map[string]set{}, waiting: map[Kind]set{}}
}

func (f *Fleet) add(name string) *node {
	n := &node{name: name, state: Unknown, built: map[string]struct{}{}}
	f.nodes[name] = n
	return n
}

func (f *Fleet) remove(n *node) {
	f.unindex(n)
	delete(f.nodes, n.name)
}

const (
	// few is the number of nodes that are all looked at for each claim.
	few = 32
	// choices is the number of nodes of which the best is taken in a larger fleet. Two are enough
	// to keep the fullest node near the average; more use sandboxes that wait better.
	choices = 4
)

// scarce is the part of a node's memory that is free in fact, below which it gets no machine: guests
// use less than they were promised, and other programs of the computer use what nobody promised.
const scarce = 16

// The distances of nodes from what a claim prefers. A load is at most 1.
const (
	noneWaits  = 1 // the node has no sandbox that waits
	notBuilt   = 2 // the template must be built first
	otherNow   = 4 // of another version than new work should get
	notCertain = 8 // its list is not complete, or it misses registrations: perhaps it does not answer
)

// Place chooses the node of a claim and reserves room there. End the reservation with Done or Drop.
func (f *Fleet) Place(now time.Duration, need Need) (Reservation, Verdict) {
	best, verdict := f.choose(now, need)
	if best == nil {
		return Reservation{}, verdict
	}
	f.last++
	r := Reservation{ID: f.last, Node: best.name, tenant: need.Tenant, works: need.Works,
		kind: need.Kind, at: now}
	if need.Machine {
		r.counts = need.Counts
	}
	if !need.Works && !need.Machine {
		return r, Placed
	}
	if !need.Works { // nobody will say when it ends
		r.done, r.ended = true, now
	}
	best.reserved = append(best.reserved, r)
	best.sum = best.sum.plus(r.counts)
	return r, Placed
}

// Hold reserves room for a machine that an earlier controller placed, and which the numbers of its node
// may not have yet. It counts as long as after Done, because nobody will say when it ends.
func (f *Fleet) Hold(now time.Duration, name, tenant string, counts Resources) {
	n := f.nodes[name]
	if n == nil {
		return
	}
	f.last++
	n.reserved = append(n.reserved, Reservation{ID: f.last, Node: name, tenant: tenant, counts: counts,
		at: now, done: true, ended: now})
	n.sum = n.sum.plus(counts)
}

// choose returns the best node, or why there is none.
func (f *Fleet) choose(now time.Duration, need Need) (*node, Verdict) {
	if need.Node != "" {
		var t tally
		if n := f.nodes[need.Node]; n != nil {
			f.consider(now, n, need, &t)
		}
		return t.best, t.verdict()
	}
	if len(f.nodes) > few && need.Version == "" {
		var t tally
		for i, s := range []set{f.waiting[need.Kind], f.built[need.Template], f.open} {
			for range min(choices, len(s.all)) {
				f.consider(now, s.all[f.random.IntN(len(s.all))], need, &t)
			}
			if t.best != nil && (i > 0 || t.distance <= 1) { // one still waits
				return t.best, Placed
			}
		}
	}
	var t tally
	for _, n := range f.nodes {
		f.consider(now, n, need, &t)
	}
	return t.best, t.verdict()
}

// A tally counts nodes by what they lack, and has the best one.
type tally struct {
	ups, may, able, stored, same, large int
	best                                *node
	distance                            float64
}

func (t *tally) verdict() Verdict {
	switch {
	case t.best != nil:
		return Placed
	case t.ups == 0:
		return Absent
	case t.may == 0:
		return Avoided
	case t.able == 0:
		return Unable
	case t.stored == 0:
		return NoStore
	case t.same == 0:
		return WrongVersion
	case t.large == 0:
		return TooLarge
	}
	return Full
}

// consider counts a node, and keeps it if it is the best.
func (f *Fleet) consider(now time.Duration, n *node, need Need, t *tally) {
	if !n.state.Answers() || need.Node == "" && (n.state == Draining || n.state == Back) {
		return
	}
	t.ups++
	if slices.Contains(need.Avoid, n.name) {
		return
	}
	t.may++
	if need.Substrate != "" && !slices.Contains(n.report.Substrates, need.Substrate) {
		return
	}
	t.able++
	if need.Store && n.report.StoreAway {
		return
	}
	t.stored++
	if need.Version != "" && n.report.Version != need.Version {
		return
	}
	t.same++
	load, possible := n.load(need)
	if !possible {
		return
	}
	t.large++
	if load > 1 || !n.mayMake(now-f.o.Young, need) {
		return
	}
	distance := load + f.distance(n, need)
	if t.best == nil || distance < t.distance || distance == t.distance && n.name < t.best.name {
		t.best, t.distance = n, distance
	}
}

// distance is how far a node is from what a claim prefers.
func (f *Fleet) distance(n *node, need Need) (d float64) {
	if n.state != Registered || !n.synced {
		d += notCertain
	}
	if !f.current(n) {
		d += otherNow
	}
	if _, has := n.built[need.Template]; !has {
		d += notBuilt
	}
	if n.left(need.Kind) <= 0 {
		d += noneWaits
	}
	return d
}

// left returns how many sandboxes of a kind wait that no reservation will take.
func (n *node) left(k Kind) int {
	count := n.report.Warm[k]
	if count == 0 {
		return 0
	}
	for _, r := range n.reserved {
		if r.kind == k {
			count--
		}
	}
	return count
}

// mayMake reports whether the node may begin another creation of the tenant. Creations that began
// before a moment do not count.
func (n *node) mayMake(after time.Duration, need Need) bool {
	if !need.Works || n.report.Makes == 0 {
		return true
	}
	count := 0
	for _, r := range n.reserved {
		if r.works && !r.done && r.at >= after && r.tenant == need.Tenant {
			count++
		}
	}
	return count < n.report.Makes
}

// load returns the share of the node that is in use with the claim added, and whether the claim
// would fit if nothing else was there. What the claim does not name counts for the load and not for
// what fits.
func (n *node) load(need Need) (share float64, possible bool) {
	used, capacity := n.report.Used.plus(n.sum), n.report.Capacity
	for _, x := range [...][3]uint64{{need.Want.CPUs, used.CPUs, capacity.CPUs},
		{need.Want.Memory, used.Memory, capacity.Memory}, {need.Want.Disk, used.Disk, capacity.Disk}} {
		want, used, all := x[0], x[1], x[2]
		switch {
		case all == 0:
		case want > all:
			return 0, false
		case want > 0:
			share = max(share, float64(used+want)/float64(all))
		case need.Machine: // of a size that only the node knows: it refuses what does not fit
			share = max(share, min(1, float64(used)/float64(all)))
		}
	}
	if free := n.report.Free; need.Machine && free > 0 && free < n.report.Capacity.Memory/scarce {
		share += 1
	}
	if need.Machine && n.report.DiskFull {
		share += 1
	}
	if !need.Machine {
		share = min(1, share)
	}
	return share, true
}

// Done notes that a claim was answered: the node has its machine, or will not have it. The
// reservation counts until reports that came later include it.
func (f *Fleet) Done(now time.Duration, r Reservation) {
	n := f.nodes[r.Node]
	if n == nil {
		return
	}
	if i, found := n.find(r.ID); found && !n.reserved[i].done {
		n.reserved[i].done, n.reserved[i].ended = true, now
	}
}

// Drop ends a reservation at once: the node was not asked.
func (f *Fleet) Drop(r Reservation) {
	if n := f.nodes[r.Node]; n != nil {
		n.drop(func(x Reservation) bool { return x.ID == r.ID })
	}
}

func (n *node) find(id uint64) (int, bool) {
	return slices.BinarySearchFunc(n.reserved, id, func(r Reservation, id uint64) int {
		return int(int64(r.ID - id))
	})
}

// Reserved returns the reservations on a node.
func (f *Fleet) Reserved(name string) []Reservation {
	if n := f.nodes[name]; n != nil {
		return slices.Clone(n.reserved)
	}
	return nil
}

// A set is nodes of which one can be chosen at random.
type set struct {
	all []*node
	at  map[*node]int
}

func newSet() set { return set{at: map[*node]int{}} }

func (s *set) add(n *node) {
	if _, in := s.at[n]; !in {
		s.at[n] = len(s.all)
		s.all = append(s.all, n)
	}
}

func (s *set) remove(n *node) {
	i, in := s.at[n]
	if !in {
		return
	}
	last := len(s.all) - 1
	s.all[i] = s.all[last]
	s.at[s.all[i]] = i
	s.all[last] = nil
	s.all = s.all[:last]
	delete(s.at, n)
}

// index makes the sets agree with a node. Call unindex before its templates or report change.
func (f *Fleet) index(n *node) {
	if n.state != Registered || !n.synced || !f.current(n) {
		f.unindex(n)
		return
	}
	f.open.add(n)
	for t := range n.built {
		add(f.built, t, n)
	}
	for k, count := range n.report.Warm {
		if count > 0 {
			add(f.waiting, k, n)
		}
	}
}

func (f *Fleet) unindex(n *node) {
	f.open.remove(n)
	for t := range n.built {
		remove(f.built, t, n)
	}
	for k := range n.report.Warm {
		remove(f.waiting, k, n)
	}
}

func add[K comparable](sets map[K]set, k K, n *node) {
	s, has := sets[k]
	if !has {
		s = newSet()
	}
	s.add(n)
	sets[k] = s
}

func remove[K comparable](sets map[K]set, k K, n *node) {
	s, has := sets[k]
	if !has {
		return
	}
	if s.remove(n); len(s.all) == 0 {
		delete(sets, k)
		return
	}
	sets[k] = s
}
