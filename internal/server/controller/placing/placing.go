// Package placing has a controller's fleet: what nodes say of themselves as reports, what requests
// want as needs, and what package fleet decides as names, errors and shares.
package placing

import (
	"fmt"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/fleet"
	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/fair"
)

// A Room is a reservation of room at a node.
type Room = fleet.Reservation

// Draining is the state of a node that gets no new work, and Lost that of one that does not answer.
const (
	Draining = fleet.Draining
	Lost     = fleet.Lost
)

// A Need is what a new object wants of its node.
type Need struct {
	Tenant    string      // of a new sandbox, whose creation costs the node work; else ""
	Node      string      // the only node that will do, such as the one of the session; or ""
	Avoid     []string    // nodes that will not do
	Machine   *v1.Machine // nil: none
	Substrate string      // may be empty
	Template  string      // preferably built already; may be empty
	Store     bool        // it is of a session, whose files may be in a bucket
	// Planned is the machine with the sizes that the request leaves to its template; of a sandbox
	// that can be one that waits.
	Planned turnstone.Machine
}

// A machine whose size is not in the request counts as this much, until the node reports it.
const (
	usualCPUs   = 1
	usualMemory = 512 << 20
)

// A Pool is how many sandboxes of a kind wait on all nodes together.
type Pool struct {
	Tenant, Template string
	Machine          turnstone.Machine // zero fields: the template's
	Min, Max         int
	Cover, Idle      time.Duration
	Avoid            []string // nodes that have no share
}

// Options are the settings of a Fleet.
type Options struct {
	Lost   time.Duration // from a node's last registration to its loss
	Forget time.Duration // from a node's last registration until it is forgotten; 0: never
	Pools  []Pool
	// Bound bounds the sandboxes of a tenant's pools together; nil: nothing does.
	Bound func(tenant string) int
	// Version is that of the controller; nodes of another one get what fits nowhere else.
	Version string
}

// settle is how long a machine counts beside the node's own numbers after its creation: a report
// that was made before the creation may arrive after it.
const settle = 10 * time.Second

// A Fleet decides for a controller, which guards it.
type Fleet struct {
	*fleet.Fleet
	pools    *fleet.Pools
	settings []Pool
	asked    map[askedKey]*askedPool
	began    time.Time
	skipped  time.Duration
	forget   time.Duration
	ticked   time.Duration
}

// New returns a fleet without nodes.
func New(o Options) *Fleet {
	f := &Fleet{forget: o.Forget, settings: o.Pools, asked: map[askedKey]*askedPool{}, began: time.Now(), Fleet: fleet.New(fleet.Options{
		Version: o.Version, Seed: uint64(time.Now().UnixNano()),
		Times: fleet.Times{Suspect: o.Lost / 2, Lost: o.Lost, Forget: o.Forget, Settle: settle, Young: settle}})}
	var pools []fleet.Pool
	for i, p := range o.Pools {
		pools = append(pools, fleet.Pool{Kind: poolKind(p, i), Min: p.Min, Max: p.Max,
			Cover: p.Cover, Idle: p.Idle})
	}
	f.pools = fleet.NewPools(pools, o.Bound)
	return f
}

// poolKind names a pool: the sizes of its machines are known when its template is.
func poolKind(p Pool, i int) fleet.Kind {
	return fleet.Kind{Tenant: p.Tenant, Template: p.Template, Shape: fmt.Sprint(i)}
}

// now is the time since the controller began, which no change of the computer's clock changes.
func (f *Fleet) now() time.Duration { return time.Since(f.began) + f.skipped }

// Skip makes the fleet believe that time has passed, for tests.
func (f *Fleet) Skip(d time.Duration) { f.skipped += d }

// Register takes the registration of a node, and returns its states before and after.
func (f *Fleet) Register(info *v1.Node) (before, after fleet.NodeState) {
	return f.Fleet.Register(f.now(), info.GetName(), report(info))
}

// Remember adds a node that an earlier controller knew, with the machines that it has by the records:
// until it registers, nothing else says what is in use there.
func (f *Fleet) Remember(info *v1.Node, machines []usage.Machine) {
	r := report(info)
	for _, m := range machines {
		if m.There {
			r.Used.CPUs, r.Used.Memory, r.Used.Disk = r.Used.CPUs+m.CPUs, r.Used.Memory+m.Memory, r.Used.Disk+m.Disk
		}
	}
	now := f.now()
	f.Fleet.Remember(now, info.GetName(), r)
	for _, m := range machines {
		if !m.There { // the earlier controller has asked the node, or had reserved its room
			f.Hold(now, info.GetName(), m.Tenant, fleet.Resources{CPUs: m.CPUs, Memory: m.Memory, Disk: m.Disk})
		}
	}
}

// again is how long a lost node is remembered at least after the controller's start: both may have been
// away.
const again = 5 * time.Minute

// RememberLost adds a node that an earlier controller has lost, and that registered last at a time of the
// computer's clock.
func (f *Fleet) RememberLost(info *v1.Node, seen time.Time) {
	silent := max(0, time.Since(seen))
	if f.forget > 0 {
		silent = min(silent, max(0, f.forget-again))
	}
	f.Fleet.RememberLost(f.now()-silent, info.GetName(), report(info))
}

// Seen returns when a node registered last.
func (f *Fleet) Seen(node string) time.Time { return time.Now().Add(-f.Silence(f.now(), node)) }

// Learn takes a node's numbers.
func (f *Fleet) Learn(info *v1.Node) { f.Fleet.Learn(f.now(), info.GetName(), report(info)) }

// Tick returns the nodes that are lost now, and divides the pools when it is time to.
func (f *Fleet) Tick() (lost, forgotten []string) {
	now := f.now()
	lost, forgotten = f.Fleet.Tick(now)
	f.expire(now)
	if len(f.settings)+len(f.asked) > 0 {
		f.divide(now)
	}
	return lost, forgotten
}

// Templates sets what a node has of templates.
func (f *Fleet) Templates(node string, all map[string]*v1.Template) {
	var built []string
	for name, t := range all {
		if t.GetState() == v1.TemplateState_TEMPLATE_STATE_BUILT {
			built = append(built, name)
		}
	}
	f.Fleet.Templates(node, built)
}

// Place returns the name of the node for a need, and counts the machine there until Done or Drop:
// the node that has to be, else of those where it fits the one with the template, else the least
// loaded.
func (f *Fleet) Place(n Need) (Room, error) {
	need := fleet.Need{Tenant: n.Tenant, Works: n.Tenant != "", Node: n.Node, Avoid: n.Avoid,
		Substrate: n.Substrate, Template: n.Template, Store: n.Store}
	if m := n.Machine; m != nil {
		need.Machine, need.Want = true, resources(m)
		need.Counts = fleet.Resources{CPUs: uint64(max(m.Cpus, usualCPUs)), Memory: m.Memory, Disk: m.Disk}
		if m.Memory == 0 {
			need.Counts.Memory = usualMemory
		}
	}
	if n.Planned != (turnstone.Machine{}) {
		need.Kind = kindOf(n.Tenant, n.Template, n.Planned)
	}
	room, verdict := f.Fleet.Place(f.now(), need)
	return room, refusal(n, verdict)
}

// Done notes that the node has answered a creation.
func (f *Fleet) Done(r Room) { f.Fleet.Done(f.now(), r) }

// Arrive notes the request for a sandbox for the pools. planned returns the sizes of a machine of a
// template.
func (f *Fleet) Arrive(n Need, planned func(*v1.Machine, string) turnstone.Machine) {
	for i, p := range f.settings {
		if p.Tenant == n.Tenant && p.Template == n.Template && planned(machine(p.Machine), n.Template) == n.Planned {
			f.pools.Arrive(f.now(), poolKind(p, i))
		}
	}
}

// report is what a node says of itself.
func report(n *v1.Node) fleet.Report {
	r := fleet.Report{Capacity: resources(n.GetCapacity()), Used: resources(n.GetUsed()),
		Makes: max(2, int(n.GetCapacity().GetCpus())), Free: n.GetAvailableMemory(),
		DiskFull: n.GetDiskFull(), StoreAway: n.GetStoreAway() != "",
		Substrates: n.GetSubstrates(), Version: n.GetVersion(), Drains: n.GetDraining()}
	r.Capacity.CPUs *= uint64(max(1, n.GetCpuShares()))
	if len(n.GetWarm()) > 0 {
		r.Warm, r.Making = make(map[fleet.Kind]int, len(n.GetWarm())), make(map[fleet.Kind]int)
	}
	for _, w := range n.GetWarm() {
		k := kindOf(w.GetTenant(), w.GetTemplate(), machineOf(w.GetMachine()))
		r.Warm[k] += int(w.GetReady())
		if w.GetMaking() > 0 {
			r.Making[k] += int(w.GetMaking())
		}
	}
	return r
}

func resources(m *v1.Machine) fleet.Resources {
	return fleet.Resources{CPUs: uint64(m.GetCpus()), Memory: m.GetMemory(), Disk: m.GetDisk()}
}

func machineOf(m *v1.Machine) turnstone.Machine {
	return turnstone.Machine{CPUs: int(m.GetCpus()), Memory: turnstone.Bytes(m.GetMemory()),
		Disk: turnstone.Bytes(m.GetDisk())}
}

func kindOf(tenant, template string, m turnstone.Machine) fleet.Kind {
	return fleet.Kind{Tenant: tenant, Template: template,
		Shape: fmt.Sprint(m.CPUs, "/", int64(m.Memory), "/", int64(m.Disk))}
}

// refusal says why there is no node.
func refusal(n Need, v fleet.Verdict) error {
	fail := func(kind turnstone.Kind, wait time.Duration, hint, format string, args ...any) error {
		return &api.Status{RetryAfter: wait, Err: turnstone.Errorf("node.place", kind, "node",
			format, args...).WithHint(hint)}
	}
	switch v {
	case fleet.Placed:
		return nil
	case fleet.Absent:
		if n.Node != "" {
			return Silent(n.Node, 5*time.Second)
		}
		return fail(turnstone.KindUnavailable, 5*time.Second, "wait until a node is there",
			"none is there")
	case fleet.Avoided:
		return fail(turnstone.KindUnavailable, 5*time.Second, "trust the key of another node, or its root, "+
			"or wait until a trusted node is there", "those that are there are to be avoided")
	case fleet.Unable:
		return fail(turnstone.KindUnavailable, 30*time.Second, "use another substrate, or none",
			"none has the substrate %s", n.Substrate)
	case fleet.NoStore:
		return fail(turnstone.KindUnavailable, 5*time.Second, "wait until the bucket of the sessions answers: "+
			"turn doctor names the nodes, and their logs the reason", "none reaches the bucket of its sessions")
	case fleet.TooLarge:
		return fail(turnstone.KindExhausted, 0, "ask for a smaller machine",
			"the machine is larger than each of them")
	}
	return fair.Full(fail(turnstone.KindExhausted, 5*time.Second,
		"try again when others have ended, or ask for a smaller machine",
		"the machine fits on none of them now"))
}

// Silent is the error about a node that does not answer.
func Silent(node string, wait time.Duration) error {
	return &api.Status{RetryAfter: wait, Err: turnstone.Errorf("node.call",
		turnstone.KindUnavailable, "node "+node, "does not answer").
		WithHint("wait until the node is back")}
}
