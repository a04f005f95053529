package controller

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/controller/guide"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/records"
)

// Bounds of what a node reports, and of the time between connections to it.
const (
	maxReports   = 500_000
	maxTemplates = 10_000
	minWait      = 100 * time.Millisecond
	maxWait      = 5 * time.Second

	maxSurplusWait = time.Minute
)

// follow follows a node until ctx ends. A connection that fails is made again.
func (c *Controller) follow(ctx context.Context, n *node) {
	wait := minWait
	for {
		began := time.Now()
		err := c.followOnce(ctx, n)
		if ctx.Err() != nil {
			return
		}
		c.nodes.synced(n, false)
		if time.Since(began) > maxWait {
			wait = minWait
		}
		c.log.Debug("a node's reports ended", "node", n.name, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, maxWait)
	}
}

// synced notes whether the list of a node is complete, unless the node is followed anew.
func (r *registry) synced(n *node, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[n.name] == n {
		r.fleet.Sync(n.name, complete)
	}
}

var errSilent = errors.New("the node is silent")

// followOnce reads the list of a node and then its changes, until the connection ends.
func (c *Controller) followOnce(ctx context.Context, n *node) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	watchdog := time.AfterFunc(c.o.Times.Silence, func() { stop(errSilent) })
	defer watchdog.Stop()
	// What is made after the mark, or is being made from now on, may be missing in the list.
	pending := c.pendings.Collect(n.name)
	defer pending()
	mark, err := c.o.Records.Mark(ctx)
	if err != nil {
		return err
	}
	stream, err := n.client.WatchNode(ctx, connect.NewRequest(&v1.WatchNodeRequest{}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	list := listing{templates: map[string]*v1.Template{}}
	for stream.Receive() {
		watchdog.Reset(c.o.Times.Silence)
		m := stream.Msg()
		if m.GetEvent() == v1.WatchEvent_WATCH_EVENT_SYNCED {
			if err := c.agree(ctx, n, list, mark, pending()); err != nil {
				return err
			}
			return c.followChanges(ctx, stop, n, stream, watchdog)
		}
		if err := list.add(c, n, m); err != nil {
			return err
		}
	}
	return stream.Err()
}

// A listing is the part of a node's list that has arrived.
type listing struct {
	objects   []records.Object
	templates map[string]*v1.Template
}

func (l *listing) add(c *Controller, n *node, m *v1.WatchNodeResponse) error {
	if len(l.objects) >= maxReports || len(l.templates) >= maxTemplates {
		return turnstone.Errorf("node.follow", turnstone.KindExhausted, n.name,
			"the node lists too many objects")
	}
	switch x := m.GetObject().(type) {
	case *v1.WatchNodeResponse_Node:
		c.learn(n, x.Node)
	case *v1.WatchNodeResponse_Template:
		l.templates[x.Template.GetName()] = x.Template
	default:
		if r, ok := message.OfEvent(m); ok && !r.Gone {
			l.objects = append(l.objects, r.Object)
		}
	}
	return nil
}

func (c *Controller) learn(n *node, info *v1.Node) {
	if info.GetName() != n.name {
		return
	}
	c.nodes.mu.Lock()
	c.nodes.fleet.Learn(info)
	info.Warm = nil
	n.info = info
	c.nodes.mu.Unlock()
	c.gate.Wake()
}

// agree makes the records agree with the list of a node.
func (c *Controller) agree(ctx context.Context, n *node, l listing, mark records.Mark,
	pending []string) error {
	pending = append(pending, c.unmade.Of(n.name)...) // their next call makes them again
	gone, _ := c.losses.Gone(n.name)
	out, err := c.reconcile(ctx, records.Report{Node: n.name, Mark: mark, Pending: pending, Known: gone,
		Objects: slices.DeleteFunc(l.objects, func(o records.Object) bool {
			return c.undecided(ctx, n.name, message.Report{Object: o})
		})})
	if err == nil {
		err = c.returned(ctx, n)
	}
	if err != nil {
		return err
	}
	if lost := len(out.Lost); lost > 0 {
		c.log.Warn("a node has lost objects", "node", n.name, "objects", lost)
	}
	c.nodes.mu.Lock()
	n.templates = l.templates
	c.nodes.fleet.Templates(n.name, l.templates)
	c.nodes.mu.Unlock()
	c.nodes.synced(n, true)
	c.gate.Wake()
	c.hub.wakeTemplates()
	c.tasks.Go(func() { c.removeSurplus(ctx, n, out.Surplus) })
	return nil
}

// followChanges records changes until the stream ends. Changes that come while earlier ones are
// recorded are merged. stop ends ctx, which is the stream's.
func (c *Controller) followChanges(ctx context.Context, stop context.CancelCauseFunc, n *node,
	stream *connect.ServerStreamForClient[v1.WatchNodeResponse], watchdog *time.Timer) error {
	q := &usage.Queue{Wake: make(chan struct{}, 1), Max: maxReports, Waiting: &c.waiting}
	defer q.Take() // what is left comes again with the next list
	ended := make(chan struct{})
	c.tasks.Go(func() {
		defer close(ended)
		if err := c.drain(ctx, n, q); err != nil {
			stop(err)
		}
	})
	var err error
	for err == nil && stream.Receive() {
		watchdog.Reset(c.o.Times.Silence)
		err = c.receive(n, q, stream.Msg())
	}
	stop(err)
	<-ended
	return errors.Join(err, stream.Err(), context.Cause(ctx))
}

// receive takes a change.
func (c *Controller) receive(n *node, q *usage.Queue, m *v1.WatchNodeResponse) error {
	switch x := m.GetObject().(type) {
	case *v1.WatchNodeResponse_Node:
		c.learn(n, x.Node)
	case *v1.WatchNodeResponse_Template:
		c.learnTemplate(n, x.Template, m.GetEvent() == v1.WatchEvent_WATCH_EVENT_DELETED)
	default:
		if r, ok := message.OfEvent(m); ok {
			return q.Add(r)
		}
	}
	return nil
}

func (c *Controller) learnTemplate(n *node, t *v1.Template, gone bool) {
	c.nodes.mu.Lock()
	if gone {
		delete(n.templates, t.GetName())
	} else if len(n.templates) < maxTemplates {
		n.templates[t.GetName()] = t
	}
	c.nodes.fleet.Template(n.name, t.GetName(),
		n.templates[t.GetName()].GetState() == v1.TemplateState_TEMPLATE_STATE_BUILT)
	c.nodes.mu.Unlock()
	c.hub.wakeTemplates()
}

// drain applies changes until ctx ends. That a sandbox is gone which had not ended is believed when
// the node does not report it again for a while: a node looks at its folders now and then, and what
// is taken for lost by mistake is removed.
func (c *Controller) drain(ctx context.Context, n *node, q *usage.Queue) error {
	doubted, early := map[usage.Ref]doubt{}, map[usage.Ref]doubt{}
	look := time.NewTicker(c.o.Times.Gone / 4)
	defer look.Stop()
	for {
		var all []message.Report
		select {
		case <-ctx.Done():
			return nil
		case <-q.Wake:
			for _, r := range q.Take() {
				delete(doubted, usage.RefOf(r.Object))
				delete(early, usage.RefOf(r.Object))
				switch {
				case r.Gone && r.Kind == records.Sandbox && !r.State.Final():
					doubted[usage.RefOf(r.Object)] = doubt{r, time.Now()}
				case c.isEarly(n.name, r):
					early[usage.RefOf(r.Object)] = doubt{r, time.Now()}
				default:
					all = append(all, r)
				}
			}
		case <-look.C:
			for id, d := range doubted {
				if time.Since(d.since) > c.o.Times.Gone {
					all = append(all, d.Report)
					delete(doubted, id)
				}
			}
			for id, d := range early {
				if !c.isEarly(n.name, d.Report) || time.Since(d.since) > c.o.Times.Gone {
					all = append(all, d.Report)
					delete(early, id)
				}
			}
		}
		if len(all) == 0 {
			continue
		}
		surplus, err := c.apply(ctx, n.name, all)
		if err != nil && ctx.Err() == nil {
			// The next connection brings the whole list.
			c.log.Error("a node's reports cannot be recorded", "node", n.name, "error", err)
			return err
		}
		if len(surplus) > 0 {
			c.tasks.Go(func() { c.removeSurplus(ctx, n, surplus) })
		}
	}
}

// isEarly reports whether a report is about a sandbox that is there, and whose creation the node has
// not answered yet. The answer says the same, and is recorded by its call: that saves a change.
func (c *Controller) isEarly(node string, r message.Report) bool {
	return r.Kind == records.Sandbox && !r.Gone &&
		(r.State == records.Ready || r.State == records.Running) && c.pendings.Has(node, r.ID)
}

// undecided reports whether a report says that a creation has failed, of a sandbox that a call is making, or whose
// call failed for now and is awaited again: such as because a registry did not answer. That its node does not have it
// then is no end: the answer of the call decides, or giveUp.
func (c *Controller) undecided(ctx context.Context, node string, r message.Report) bool {
	failed := r.State == records.Failed && r.Reason == string(records.CreateFailed)
	if r.Kind != records.Sandbox || !failed && (!r.Gone || r.State.Final()) ||
		!c.pendings.Has(node, r.ID) && !c.unmade.Has(usage.RefOf(r.Object)) {
		return false
	}
	o, err := c.o.Records.Object(ctx, r.Tenant, r.Kind, r.ID)
	return err == nil && o.State == records.Creating
}

// A doubt is a report that waits.
type doubt struct {
	message.Report
	since time.Time
}

// apply makes records agree with changes, and returns what the node should not have.
func (c *Controller) apply(ctx context.Context, node string, all []message.Report) (
	[]records.Object, error) {
	var objects []records.Object
	for _, r := range all {
		switch {
		case c.undecided(ctx, node, r):
		case r.Kind == records.Sandbox && !c.ledger.Newer(usage.RefOf(r.Object), node, r.At, time.Now()) &&
			!r.State.Final(): // nothing follows an end
		case r.Gone:
			if err := c.gone(ctx, node, r); err != nil {
				return nil, err
			}
		case c.activity(ctx, node, r):
		default:
			objects = append(objects, r.Object)
		}
	}
	if len(objects) == 0 {
		return nil, nil
	}
	out, err := c.reconcile(ctx, records.Report{Node: node, Objects: objects})
	return out.Surplus, err
}

// reconcile changes records and notes the changes. Of a node one list or change is recorded at a time.
func (c *Controller) reconcile(ctx context.Context, r records.Report) (records.Outcome, error) {
	for i := range r.Objects {
		c.inherit(ctx, &r.Objects[i])
	}
	of := r.Objects
	if r.Mark > 0 { // a list: what is missing in it is lost
		of = nil
	}
	if c.o.Shared {
		r.Moves = guide.Later
	}
	var out records.Outcome
	err := c.committing(ctx, "", func() (err error) {
		if out, err = c.o.Records.Reconcile(ctx, r); err != nil {
			return err
		}
		c.note(slices.Concat(out.Changed, out.Lost, out.Adopted)...)
		for _, o := range out.Adopted {
			if o.Kind == records.Session && o.Name != "" {
				if err := c.adopt(ctx, o); err != nil {
					return err
				}
			}
		}
		return nil
	}, of...)
	return out, err
}

// adopt gives a session that is new what was begun under its name. The caller holds commit.
func (c *Controller) adopt(ctx context.Context, s records.Object) error {
	for r, node := range c.ledger.Of(s.Tenant, s.Name) {
		if node != s.Node && !c.o.Shared {
			continue
		}
		after, err := c.o.Records.Change(ctx, node, r.Kind, r.ID, records.Change{Session: &s.ID})
		if err != nil {
			return err
		}
		c.note(after)
	}
	return nil
}

// inherit replaces the name of a session that a node reports by the ID, which records have. An object
// whose session is known keeps it: the name in a report may be an old one, and another session's now.
func (c *Controller) inherit(ctx context.Context, o *records.Object) {
	if o.Session == "" || records.IsSessionID(o.Session) {
		return
	}
	was, err := c.o.Records.Object(ctx, o.Tenant, o.Kind, o.ID)
	if err == nil && records.IsSessionID(was.Session) {
		o.Session = ""
		return
	}
	s, err := c.o.Records.Named(ctx, o.Tenant, records.Session, o.Session)
	if err == nil {
		o.Session = s.ID
	}
}

// activity records a change between ready and running, which costs no write to the disk, and
// reports whether r is no more than that, or nothing new.
func (c *Controller) activity(ctx context.Context, node string, r message.Report) bool {
	if r.Kind != records.Sandbox || r.State != records.Ready && r.State != records.Running {
		return false
	}
	o, err := c.o.Records.Object(ctx, r.Tenant, r.Kind, r.ID)
	if err != nil || o.Node != node || o.State != records.Ready && o.State != records.Running ||
		o.Paused != r.Paused || string(o.Detail) != string(r.Detail) {
		return false
	}
	if o.State == r.State {
		return r.Session == "" || r.Session == o.Session
	}
	_, err = c.change(ctx, o, records.Change{State: r.State})
	return err == nil
}

// gone records that a node has removed an object.
func (c *Controller) gone(ctx context.Context, node string, r message.Report) error {
	o, err := c.o.Records.Object(ctx, r.Tenant, r.Kind, r.ID)
	if err != nil && turnstone.KindOf(err) == turnstone.KindNotFound {
		return nil
	} else if err != nil {
		return err
	}
	if o.Node != node || o.State.Final() {
		return nil
	}
	ch := records.Change{Event: records.Lost, Result: r.Result}
	switch {
	case o.Kind == records.Session || o.Kind == records.Snapshot:
		ch.Event = records.Deleted
	case r.State.Final() && records.Reaches(o.Kind, o.State, r.State):
		ch = records.Change{State: r.State, Reason: r.Reason, Result: r.Result}
	case o.Kind == records.Sandbox && o.State != records.Creating:
		ch.Event = records.StopRequested
	case o.Kind == records.Turn && o.State == records.Running:
		ch.Result = records.ResultError
	}
	_, err = c.change(ctx, o, ch)
	return err
}

// removeSurplus removes what a node has and should not, until ctx ends with the node's reports: the next
// list shows what is left. Sessions and snapshots are never removed: they cannot be made again.
func (c *Controller) removeSurplus(ctx context.Context, n *node, all []records.Object) {
	for wait := minWait; len(all) > 0 && ctx.Err() == nil; wait = min(2*wait, maxSurplusWait) {
		all = slices.DeleteFunc(all, func(o records.Object) bool {
			ask, end := context.WithTimeout(ctx, c.o.Times.Call)
			defer end()
			err := c.discard(ask, n.name, o)
			if err != nil && ctx.Err() == nil {
				c.log.Warn("a node has what it should not", "node", n.name, "object", o.ID, "error", err)
			}
			return err == nil
		})
		if len(all) > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}
