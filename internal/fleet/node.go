package fleet

import (
	"slices"
	"strings"
	"time"
)

// A NodeState says what a node gets.
type NodeState string

// The states of nodes.
const (
	Unknown    NodeState = "unknown"
	Registered NodeState = "registered" // it gets work
	Suspect    NodeState = "suspect"    // it missed registrations: work only if no other node fits
	Draining   NodeState = "draining"   // it gets only what must be there
	Lost       NodeState = "lost"       // its lease ran out: nothing is asked of it
	Back       NodeState = "back"       // it registered after it was lost; its list is not compared yet
	Gone       NodeState = "gone"       // it was removed
)

// A NodeEvent moves a node to another state.
type NodeEvent string

// The events of nodes.
const (
	Registers   NodeEvent = "registers"
	Drains      NodeEvent = "registers and drains"
	Silent      NodeEvent = "misses registrations"
	LeaseEnds   NodeEvent = "lease ends"
	Reconciled  NodeEvent = "list agrees with records"
	Leaves      NodeEvent = "leaves"
	Remembered  NodeEvent = "is in the records of an earlier controller"
	RecalledAs  NodeEvent = "is lost in the records of an earlier controller"
	ForgottenAt NodeEvent = "stays away for long"
)

// NodeTable are the transitions of nodes.
var NodeTable = Table[NodeState, NodeEvent]{
	{[]NodeState{Unknown}, []NodeEvent{Remembered}, Suspect},
	{[]NodeState{Unknown}, []NodeEvent{RecalledAs}, Lost},
	{[]NodeState{Unknown, Registered, Suspect, Draining, Gone}, []NodeEvent{Registers}, Registered},
	{[]NodeState{Unknown, Registered, Suspect, Draining, Gone}, []NodeEvent{Drains}, Draining},
	{[]NodeState{Registered, Suspect}, []NodeEvent{Silent}, Suspect},
	{[]NodeState{Registered, Suspect, Draining, Back}, []NodeEvent{LeaseEnds}, Lost},
	{[]NodeState{Lost, Back}, []NodeEvent{Registers, Drains}, Back},
	{[]NodeState{Back}, []NodeEvent{Reconciled}, Registered},
	{[]NodeState{Draining, Lost}, []NodeEvent{Leaves}, Gone},
	{[]NodeState{Lost}, []NodeEvent{ForgottenAt}, Gone},
}

// Answers reports whether a node in this state is asked for what is there already.
func (s NodeState) Answers() bool {
	return s == Registered || s == Suspect || s == Draining || s == Back
}

// Resources are what machines need and nodes have. A capacity of 0 has no bound.
type Resources struct{ CPUs, Memory, Disk uint64 }

func (r Resources) plus(o Resources) Resources {
	return Resources{r.CPUs + o.CPUs, r.Memory + o.Memory, r.Disk + o.Disk}
}

func (r Resources) minus(o Resources) Resources {
	return Resources{r.CPUs - o.CPUs, r.Memory - o.Memory, r.Disk - o.Disk}
}

// Within reports whether r fits in a capacity.
func (r Resources) Within(capacity Resources) bool {
	return (capacity.CPUs == 0 || r.CPUs <= capacity.CPUs) &&
		(capacity.Memory == 0 || r.Memory <= capacity.Memory) &&
		(capacity.Disk == 0 || r.Disk <= capacity.Disk)
}

// A Report is what a node says of itself.
type Report struct {
	Capacity, Used Resources
	// Makes is how many sandboxes of a tenant the node makes at one time.
	Makes int
	// Free is the memory that the node measured as free; 0: it does not measure.
	Free uint64
	// DiskFull: the node measured that its disk has no room for new work.
	DiskFull   bool
	StoreAway  bool // the bucket of its sessions cannot be used
	Substrates []string
	Version    string // of its programs
	Drains     bool
	Warm       map[Kind]int // sandboxes that wait for a claim
	Making     map[Kind]int // sandboxes that will wait for one
}

// Times are the intervals of a Fleet.
type Times struct {
	Suspect time.Duration // from the last registration until a node is suspect
	Lost    time.Duration // from the last registration until a node is lost
	Forget  time.Duration // from the last registration until a lost node is forgotten; 0: never
	// Settle is how long a reservation counts beside the node's own numbers after its creation has
	// ended. It is longer than a report takes to arrive, so that each report that comes later
	// includes the machine.
	Settle time.Duration
	// Young is how long a creation counts as work of its node: one that takes longer waits for
	// something else, such as a registry.
	Young time.Duration
}

// Options are the settings of a Fleet.
type Options struct {
	Times
	// Version is the version of programs that gets new work; nodes of others get what does not fit
	// there. Empty: all versions are the same.
	Version string
	Seed    uint64 // of choices between nodes
}

// A node is what is known of a node.
type node struct {
	name     string
	state    NodeState
	seen     time.Duration
	synced   bool // its list is complete
	report   Report
	built    map[string]struct{} // templates
	reserved []Reservation       // in the order of their numbers
	sum      Resources           // of reserved
}

// event moves a node, if the event can happen, and keeps what depends on the state.
func (f *Fleet) event(n *node, e NodeEvent) {
	to, ok := NodeTable.Next(n.state, e)
	if !ok {
		return
	}
	n.state = to
	if !to.Answers() {
		n.synced = false
	}
	f.index(n)
}

// Register takes a node's registration, and returns its states before and after.
func (f *Fleet) Register(now time.Duration, name string, r Report) (before, after NodeState) {
	n := f.nodes[name]
	if n == nil {
		n = f.add(name)
	}
	before = n.state
	n.seen = now
	f.learn(now, n, r)
	if r.Drains {
		f.event(n, Drains)
	} else {
		f.event(n, Registers)
	}
	return before, n.state
}

// Remember adds a node that an earlier controller knew, unless it has registered.
func (f *Fleet) Remember(now time.Duration, name string, r Report) {
	if f.nodes[name] != nil {
		return
	}
	n := f.add(name)
	n.seen = now
	f.learn(now, n, r)
	if r.Drains {
		f.event(n, Drains)
		return
	}
	f.event(n, Remembered)
}

// RememberLost adds a node that an earlier controller has lost, and that registered last at a time, which
// may be before the beginning.
func (f *Fleet) RememberLost(seen time.Duration, name string, r Report) {
	if f.nodes[name] != nil {
		return
	}
	n := f.add(name)
	n.seen, n.report = seen, r
	f.event(n, RecalledAs)
}

// Learn takes a node's numbers, which come without a registration.
func (f *Fleet) Learn(now time.Duration, name string, r Report) {
	if n := f.nodes[name]; n != nil {
		r.Drains = n.report.Drains
		f.learn(now, n, r)
		f.index(n)
	}
}

// learn takes numbers, and drops the reservations that they include.
func (f *Fleet) learn(now time.Duration, n *node, r Report) {
	f.unindex(n)
	n.report = r
	n.drop(func(x Reservation) bool { return x.done && now-x.ended > f.o.Settle })
	f.index(n)
}

// drop removes reservations.
func (n *node) drop(which func(Reservation) bool) {
	n.reserved = slices.DeleteFunc(n.reserved, func(x Reservation) bool {
		out := which(x)
		if out {
			n.sum = n.sum.minus(x.counts)
		}
		return out
	})
}

// Sync notes whether a node's list is complete and agrees with the records.
func (f *Fleet) Sync(name string, complete bool) {
	n := f.nodes[name]
	if n == nil {
		return
	}
	n.synced = complete && n.state.Answers()
	if n.synced {
		f.event(n, Reconciled)
		if n.report.Drains {
			f.event(n, Drains)
		}
	}
	f.index(n)
}

// Synced reports whether a node's list is complete and agrees with the records.
func (f *Fleet) Synced(name string) bool { return f.nodes[name] != nil && f.nodes[name].synced }

// Templates sets the templates that are built on a node.
func (f *Fleet) Templates(name string, built []string) {
	if n := f.nodes[name]; n != nil {
		f.unindex(n)
		n.built = make(map[string]struct{}, len(built))
		for _, t := range built {
			n.built[t] = struct{}{}
		}
		f.index(n)
	}
}

// Template notes whether a template is built on a node.
func (f *Fleet) Template(name, template string, built bool) {
	n := f.nodes[name]
	if n == nil {
		return
	}
	if _, has := n.built[template]; has == built {
		return
	}
	f.unindex(n)
	if built {
		n.built[template] = struct{}{}
	} else {
		delete(n.built, template)
	}
	f.index(n)
}

// Tick moves nodes that are silent, and returns those that are lost by it, and those that are forgotten,
// in the order of names.
func (f *Fleet) Tick(now time.Duration) (lost, forgotten []string) {
	var late []*node
	for _, n := range f.nodes {
		if now-n.seen > f.o.Suspect {
			late = append(late, n)
		}
	}
	// Sets keep the order in which nodes enter and leave them, and choices depend on it.
	slices.SortFunc(late, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	for _, n := range late {
		silent := now - n.seen
		switch {
		case n.state == Lost && f.o.Forget > 0 && silent > f.o.Forget:
			f.event(n, ForgottenAt)
			f.remove(n)
			forgotten = append(forgotten, n.name)
		case n.state.Answers() && silent > f.o.Lost:
			f.event(n, LeaseEnds)
			lost = append(lost, n.name)
		default:
			f.event(n, Silent)
		}
	}
	return lost, forgotten
}

// Leave removes a node that drains or is lost, and reports whether it did.
func (f *Fleet) Leave(name string) bool {
	n := f.nodes[name]
	if n == nil || n.state != Draining && n.state != Lost {
		return false
	}
	f.event(n, Leaves)
	f.remove(n)
	return true
}

// Silence returns for how long a node has not registered.
func (f *Fleet) Silence(now time.Duration, name string) time.Duration {
	if n := f.nodes[name]; n != nil {
		return now - n.seen
	}
	return 0
}

// State returns the state of a node.
func (f *Fleet) State(name string) NodeState {
	if n := f.nodes[name]; n != nil {
		return n.state
	}
	return Unknown
}

// Count returns the number of nodes in each state.
func (f *Fleet) Count() map[NodeState]int {
	counts := map[NodeState]int{}
	for _, n := range f.nodes {
		counts[n.state]++
	}
	return counts
}

// Len returns the number of nodes.
func (f *Fleet) Len() int { return len(f.nodes) }

// Waiting returns how many sandboxes of a kind wait, and how many are being made, on the nodes that
// answer and are not to be avoided.
func (f *Fleet) Waiting(k Kind, avoid ...string) (ready, making int) {
	for _, n := range f.nodes {
		if n.state.Answers() && !slices.Contains(avoid, n.name) {
			ready, making = ready+n.report.Warm[k], making+n.report.Making[k]
		}
	}
	return ready, making
}

// Open returns the names of the nodes that get work, and of the wanted version if there is one, in
// their order.
func (f *Fleet) Open() (names []string) {
	var others []string
	for name, n := range f.nodes {
		switch {
		case n.state != Registered:
		case f.current(n):
			names = append(names, name)
		default:
			others = append(others, name)
		}
	}
	if len(names) == 0 {
		names = others
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

func (f *Fleet) current(n *node) bool {
	return f.o.Version == "" || n.report.Version == f.o.Version
}
