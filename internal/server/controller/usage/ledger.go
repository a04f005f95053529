// Package usage keeps in memory what tenants use now: machines, and what they occupy.
package usage

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/records"
)

// A Ref names an object.
type Ref struct {
	Kind records.Kind
	ID   string
}

// RefOf returns the name of an object.
func RefOf(o records.Object) Ref { return Ref{o.Kind, o.ID} }

// A Ledger has what has not ended, in memory: for the usage of tenants, and for the node of a new
// session's first turns. The records can make it again.
type Ledger struct {
	mu   sync.Mutex
	live map[Ref]*entry
	// sessions has the nodes of objects that have not ended by tenant and session.
	sessions map[[2]string]map[Ref]string
	// sums has what the entries of each tenant use together, except what they have sent.
	sums    map[string]*Standing
	ended   []records.Usage // that are not recorded yet
	sent    map[string]*sent
	flushed time.Time
}

// sent is what a tenant's machines have sent since a day began. A clock that goes back begins none.
type sent struct {
	day   time.Time
	bytes uint64
}

// Day returns the beginning of the day of a time.
func Day(at time.Time) time.Time { return at.UTC().Truncate(24 * time.Hour) }

// today returns what a tenant has sent today. The caller has l.mu.
func (l *Ledger) today(tenant string, now time.Time) *sent {
	if l.sent == nil {
		l.sent = map[string]*sent{}
	}
	s := l.sent[tenant]
	if s == nil {
		s = &sent{}
		l.sent[tenant] = s
	}
	if day := Day(now); day.After(s.day) {
		*s = sent{day: day}
	}
	return s
}

// SetSent sets what a tenant has sent today, as it was recorded.
func (l *Ledger) SetSent(tenant string, bytes uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.today(tenant, time.Now()).bytes = bytes
}

type entry struct {
	tenant, node, session string
	size                  uint64            // bytes that it occupies
	cpus                  int               // 0: no machine
	memory, disk          uint64            //
	plan                  turnstone.Machine // what the machine will be, as long as it has none
	began                 time.Time         // of the machine; zero: it has none yet
	changed               time.Time         // of the node's last report
	used                  turnstone.Used
}

// Note takes the state of an object after a change. The caller holds Controller.commit.
func (l *Ledger) Note(o records.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	r := RefOf(o)
	e := l.live[r]
	if e != nil {
		l.count(r, e, false)
	}
	if o.State.Final() {
		if e == nil {
			return
		}
		l.measure(o, e)
		l.drop(r, e)
		if o.Session != "" {
			e.session = o.Session
		}
		if !e.began.IsZero() {
			l.ended = append(l.ended, e.span(r, o.Ended))
		}
		delete(l.live, r)
		return
	}
	if e == nil {
		e = &entry{tenant: o.Tenant}
		l.live[r] = e
	}
	defer func() { l.count(r, e, true) }()
	e.node = o.Node
	if e.session != o.Session {
		l.drop(r, e)
		e.session = o.Session
		if o.Session != "" {
			key := [2]string{e.tenant, e.session}
			if l.sessions[key] == nil {
				l.sessions[key] = map[Ref]string{}
			}
			l.sessions[key][r] = e.node
		}
	}
	l.measure(o, e)
}

// init makes the maps. The caller has l.mu.
func (l *Ledger) init() {
	if l.live == nil {
		l.live, l.sessions = map[Ref]*entry{}, map[[2]string]map[Ref]string{}
		l.sums = map[string]*Standing{}
	}
}

// count adds what an entry uses to its tenant's sum, or takes it away. The caller has l.mu, and counts
// an entry again after each change.
func (l *Ledger) count(r Ref, e *entry, more bool) {
	s := l.sums[e.tenant]
	if s == nil {
		s = &Standing{}
		l.sums[e.tenant] = s
	}
	var x Standing
	x.add(r.Kind, e)
	if !more { // unsigned numbers wrap around: the sum is right
		x = Standing{Sandboxes: -x.Sandboxes, Turns: -x.Turns, Held: -x.Held, CPUs: -x.CPUs,
			Memory: -x.Memory, Disk: -x.Disk, Stored: -x.Stored}
	}
	*s = Standing{Sandboxes: s.Sandboxes + x.Sandboxes, Turns: s.Turns + x.Turns, Held: s.Held + x.Held,
		CPUs: s.CPUs + x.CPUs, Memory: s.Memory + x.Memory, Disk: s.Disk + x.Disk,
		Stored: s.Stored + x.Stored}
	if *s == (Standing{}) {
		delete(l.sums, e.tenant)
	}
}

func (l *Ledger) drop(r Ref, e *entry) {
	key := [2]string{e.tenant, e.session}
	delete(l.sessions[key], r)
	if len(l.sessions[key]) == 0 {
		delete(l.sessions, key)
	}
}

// measure reads what an object uses. A machine's size and beginning do not change once they are
// known, because spans are stored with them.
func (l *Ledger) measure(o records.Object, e *entry) {
	switch o.Kind {
	case records.Sandbox:
		s := &v1.Sandbox{}
		message.Decode(o.Detail, s)
		l.use(e, s.GetUsed())
		if e.plan == (turnstone.Machine{}) && e.began.IsZero() {
			// An earlier controller planned it: what it asked for was not recorded.
			usual := turnstone.DefaultShape()
			e.plan = turnstone.Machine{CPUs: usual.CPUs, Memory: usual.Memory, Disk: usual.Disk}
		}
		if e.began.IsZero() && o.State != records.Creating && o.Detail != nil {
			e.cpus, e.memory = int(s.GetMachine().GetCpus()), s.GetMachine().GetMemory()
			e.disk = s.GetMachine().GetDisk()
			e.began = o.Created
		}
	case records.Turn:
		t := &v1.Turn{}
		message.Decode(o.Detail, t)
		l.use(e, t.GetUsed())
		cpus, _ := strconv.ParseUint(o.Labels[message.LabelCPUs], 10, 16)
		memory, _ := strconv.ParseUint(o.Labels[message.LabelMemory], 10, 63)
		disk, _ := strconv.ParseUint(o.Labels[message.LabelDisk], 10, 63)
		e.plan = turnstone.Machine{CPUs: max(int(cpus), 1), Memory: turnstone.Bytes(memory),
			Disk: turnstone.Bytes(disk)}
		if e.began.IsZero() && (o.State == records.Running || o.State == records.Done) {
			e.began = within(message.Instant(t.GetStarted()), o.Created, o.Changed)
			if e.began.IsZero() && o.State == records.Running {
				e.began = o.Changed
			}
			e.cpus, e.memory, e.disk = e.plan.CPUs, memory, disk
		}
	case records.Session:
		s := &v1.Session{}
		message.Decode(o.Detail, s)
		e.size = s.GetSize()
	case records.Snapshot:
		s := &v1.Snapshot{}
		message.Decode(o.Detail, s)
		e.size = s.GetSize()
	}
}

// within returns the time of a node's clock, which may be years off, between two of this one: a turn
// runs after its record was made, and before its end or beginning is recorded.
func within(at, first, last time.Time) time.Time {
	switch {
	case at.IsZero():
		return at
	case at.Before(first):
		return first
	case at.After(last) && !last.Before(first):
		return last
	}
	return at
}

// use notes what a node has measured. A node may report older numbers again.
func (l *Ledger) use(e *entry, u *v1.Used) {
	const most = 1 << 60
	before := e.used.Sent
	defer func() {
		if e.used.Sent > before {
			l.today(e.tenant, time.Now()).bytes += uint64(e.used.Sent - before)
		}
	}()
	e.used = e.used.Max(turnstone.Used{
		CPU:      turnstone.Millis(min(max(u.GetCpu().AsDuration(), 0), most)),
		Sent:     turnstone.Bytes(min(u.GetBytesOut(), most)),
		Received: turnstone.Bytes(min(u.GetBytesIn(), most))})
}

// span returns the usage of a machine until a time.
func (e *entry) span(r Ref, until time.Time) records.Usage {
	if until.Before(e.began) { // clocks differ
		until = e.began
	}
	return records.Usage{Tenant: e.tenant, Kind: r.Kind, Object: r.ID, Node: e.node, From: e.began,
		To: until, CPUs: e.cpus, Memory: turnstone.Bytes(e.memory), Session: e.session, Used: e.used}
}

// maxAhead is how much later than here a node's clock may be with its reports still being compared.
const maxAhead = time.Minute

// Newer reports whether a report of a node about an object is not older than the last one, and
// notes its time. A report of another node than the object's is not compared, and sets no time. A time
// far ahead of now counts as one that is near: after the clock was set right, the node is heard again.
func (l *Ledger) Newer(r Ref, node string, changed, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.live[r]
	if e == nil || e.node != node || changed.IsZero() {
		return true
	}
	if most := now.Add(maxAhead); changed.After(most) {
		changed = most
	}
	if changed.Before(e.changed) {
		return false
	}
	e.changed = changed
	return true
}

// Of returns the objects of a session that have not ended, with their nodes.
func (l *Ledger) Of(tenant, session string) map[Ref]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.sessions[[2]string{tenant, session}])
}

// NodeOf returns the node of the objects of a session that have not ended, or "".
func (l *Ledger) NodeOf(tenant, session string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, node := range l.sessions[[2]string{tenant, session}] {
		return node
	}
	return ""
}

// Plan notes the machine of a new object, whose record follows. It counts from now on. Without a
// record, Drop ends that.
func (l *Ledger) Plan(tenant string, r Ref, m turnstone.Machine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.init()
	if old := l.live[r]; old != nil {
		l.count(r, old, false)
	}
	e := &entry{tenant: tenant, plan: m}
	l.live[r] = e
	l.count(r, e, true)
}

// Drop forgets objects of Plan that have no record.
func (l *Ledger) Drop(all ...Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range all {
		if e := l.live[r]; e != nil {
			l.count(r, e, false)
			delete(l.live, r)
		}
	}
}

// A Machine is one that a node has, or may have soon.
type Machine struct {
	Node, Tenant       string
	CPUs, Memory, Disk uint64
	There              bool // the node has answered
}

// Machines returns the machines that have not ended, by their nodes.
func (l *Ledger) Machines() map[string][]Machine {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string][]Machine)
	for r, e := range l.live {
		if e.node == "" || r.Kind != records.Sandbox && r.Kind != records.Turn {
			continue
		}
		var s Standing
		s.add(r.Kind, e)
		all[e.node] = append(all[e.node], Machine{Node: e.node, Tenant: e.tenant, CPUs: s.CPUs,
			Memory: s.Memory, Disk: s.Disk, There: !e.began.IsZero()})
	}
	return all
}

// A Standing is what a tenant uses now.
type Standing struct {
	Sandboxes, Turns   uint32 // that have a machine
	Held               uint64 // sandboxes that have not ended
	CPUs, Memory, Disk uint64 // of sandboxes and turns that have not ended
	Stored             uint64 // bytes
	Sent               uint64 // bytes, today
}

// Standing returns what a tenant uses now, at a cost that does not grow with it.
func (l *Ledger) Standing(tenant string) (s Standing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sum := l.sums[tenant]; sum != nil {
		s = *sum
	}
	s.Sent = l.today(tenant, time.Now()).bytes
	return s
}

// add adds what an entry uses.
func (s *Standing) add(k records.Kind, e *entry) {
	s.Stored += e.size
	if k == records.Sandbox {
		s.Held++
	}
	if e.began.IsZero() { // turns that are reserved may all begin at once
		s.CPUs += uint64(e.plan.CPUs)
		s.Memory += uint64(e.plan.Memory)
		s.Disk += uint64(e.plan.Disk)
		return
	}
	s.CPUs, s.Memory, s.Disk = s.CPUs+uint64(e.cpus), s.Memory+e.memory, s.Disk+e.disk
	switch k {
	case records.Sandbox:
		s.Sandboxes++
	case records.Turn:
		s.Turns++
	}
}

// Take returns the spans to record: of machines that ended, and of those that exist until now.
func (l *Ledger) Take(now time.Time) (spans []records.Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	spans, l.ended, l.flushed = l.ended, nil, now
	for r, e := range l.live {
		if !e.began.IsZero() {
			spans = append(spans, e.span(r, now))
		}
	}
	return spans
}

func (l *Ledger) PutBack(spans []records.Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = append(l.ended, spans...)
}

// Stale reports whether nothing was taken for longer than most.
func (l *Ledger) Stale(now time.Time, most time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.flushed) > most
}
