package controller

import (
	"context"
	"errors"
	"slices"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/inflight"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/fair"
	"turnstone.dev/turnstone/internal/server/records"
)

// A creation makes objects: their records first, then the objects at their node.
type creation struct {
	op   turnstone.Op
	key  *records.Key // nil: the request has none
	want quota.Want
	// room is what plan reserves at the node until it has answered; nil: nothing.
	room *placing.Room
	// plan chooses a node and returns the objects, with new IDs. It runs in Controller.gate, again if
	// there was no room, and not at all if the key was used.
	plan func(ctx context.Context) ([]records.Object, error)
	// make asks the node. It is repeated with the same objects until the node has answered once,
	// so that the node makes them once.
	make func(ctx context.Context, made []records.Object) error
	// again answers the objects of a key whose creation the node has answered.
	again func(ctx context.Context, made []records.Object) error
}

// create runs a creation. Of calls with one key one at a time asks the node.
func (c *Controller) create(ctx context.Context, p auth.Principal, n creation) error {
	made, old, done, err := c.plan(ctx, p.Tenant, n)
	if err != nil {
		return err
	}
	defer done()
	if old { // another call may be asking the node
		var unlock func()
		fair.Rest(ctx, func() { unlock, err = c.calls.Lock(ctx, lockOf(made[0])) })
		if err != nil {
			return err
		}
		defer unlock()
		if made, err = c.reread(ctx, p, n.op, made); err != nil {
			return err
		}
	}
	c.unmade.Remove(made[0])
	if answered(made[0]) {
		return n.again(ctx, made)
	}
	if o := made[0]; o.Kind == records.Turn && o.State == records.Expired &&
		o.Reason == records.LostReason {
		// The node was restarted before it answered. Its ticket is unknown to the caller, so it can
		// begin nothing; the code says that the same key does not succeed later.
		return &api.Status{Code: connect.CodeFailedPrecondition,
			Err: turnstone.Errorf(n.op, turnstone.KindDead, o.ID,
				"has not begun: its node was restarted").WithHint("start the turn again")}
	}
	if made[0].State.Final() {
		return api.SpendKey(unfit(n.op, made[0].ID, "could not be created: %s", made[0].Reason))
	}
	if err := n.make(ctx, made); err != nil {
		return c.fail(ctx, n, made, err)
	}
	return nil
}

// answered reports whether the node has answered the creation of an object that has not failed.
func answered(o records.Object) bool {
	switch o.Kind {
	case records.Sandbox:
		return o.State == records.Ready || o.State == records.Running || o.State == records.Stopped ||
			o.State == records.Failed && o.Reason != string(records.CreateFailed) && o.Detail != nil
	case records.Turn:
		return o.State == records.Running || o.State == records.Done || o.Detail != nil
	}
	return o.Detail != nil
}

// lockOf returns what is locked while the node is asked to make objects, of which o is the first.
func lockOf(o records.Object) string { return string(o.Kind) + o.ID }

// plan returns the old objects of the key, or records new ones. They are pending until done is
// called; until then new ones are also locked.
func (c *Controller) plan(ctx context.Context, tenant string, n creation) (made []records.Object,
	old bool, done func(), err error) {
	if n.key != nil {
		// Of calls with one key the first counts against the quota, and the others find its objects.
		var unlock func()
		fair.Rest(ctx, func() { unlock, err = c.calls.Lock(ctx, n.key.Tenant+" "+n.key.Method+" "+n.key.Key) })
		if err != nil {
			return nil, false, nil, err
		}
		defer unlock()
		made, err = c.o.Records.Used(ctx, *n.key)
		if turnstone.KindOf(err) == turnstone.KindInvalid {
			err = api.SpendKey(err)
		}
		if err != nil {
			return nil, false, nil, err
		}
		if len(made) > 0 {
			return made, true, c.pendings.Add(made[0].Node, ids(made)...), nil
		}
	}
	counted := !n.want.Turn
	// Without the gate, which others wait for: a refusal costs little.
	if err := c.quotas.Check(tenant, c.ledger.Standing(tenant), n.want); err != nil {
		return nil, false, nil, err
	}
	var x planned
	try := func() error {
		err := c.quotas.Check(tenant, c.ledger.Standing(tenant), n.want)
		if err == nil && !counted {
			err, counted = c.quotas.TakeTurn(tenant), true
		}
		if err == nil {
			x, err = c.choose(ctx, tenant, n)
		}
		if err == nil && x.inNew() {
			made, old, done, err = c.record(ctx, tenant, n, x)
		}
		return err
	}
	fair.Rest(ctx, func() {
		err = c.gate.Enter(ctx, tenant, max(n.want.Sandboxes, 1)*max(n.want.Each.CPUs, 1), try)
	})
	if err == nil && done == nil {
		made, old, done, err = c.record(ctx, tenant, n, x)
	}
	return made, old, done, err
}

// planned are objects that count, and have no record yet.
type planned struct {
	all  []records.Object
	done func() // ends what is held for them, after their node was asked, or will not be
}

// inNew reports whether objects are sessions, or part of one that has no record yet.
func (x planned) inNew() bool {
	return slices.ContainsFunc(x.all, func(o records.Object) bool {
		return o.Kind == records.Session || o.Session != "" && !records.IsSessionID(o.Session)
	})
}

// choose plans objects: from now on they count against the quota, and have room at their node.
func (c *Controller) choose(ctx context.Context, tenant string, n creation) (x planned, err error) {
	all, err := n.plan(ctx)
	if err != nil {
		return x, err
	}
	var undo []func()
	x = planned{all, func() {
		for _, f := range undo {
			f()
		}
	}}
	if n.room != nil {
		undo = append(undo, func() { c.nodes.free(*n.room, true); c.gate.Wake() })
	}
	unlock, err := c.calls.Lock(ctx, lockOf(all[0])) // before others can find it by the key
	if err != nil {
		if n.room != nil {
			c.nodes.free(*n.room, false)
		}
		x.done()
		return x, err
	}
	undo = append(undo, c.pendings.Add(all[0].Node, ids(all)...), unlock)
	for _, o := range all {
		c.ledger.Plan(tenant, usage.RefOf(o), n.want.Each)
	}
	return x, nil
}

// record records what was planned, together with what others record now. Without records nothing of
// the plan counts any more.
func (c *Controller) record(ctx context.Context, tenant string, n creation, x planned) (
	made []records.Object, old bool, done func(), err error) {
	kept := false
	defer func() { // also after a panic
		if kept {
			return
		}
		for _, o := range x.all {
			c.ledger.Drop(usage.RefOf(o))
		}
		if n.room != nil {
			c.nodes.free(*n.room, false)
		}
		x.done()
	}()
	err = c.committing(ctx, tenant, func() (err error) {
		if err := c.late(ctx, x.all); err != nil {
			return err
		}
		if made, old, err = c.o.Records.Create(ctx, n.key, x.all...); err == nil && !old {
			kept = true
			c.note(made...)
		}
		return err
	}, x.all...)
	switch {
	case err != nil:
		return nil, false, nil, err
	case old: // an earlier controller, which still ran, was faster with this key
		return made, true, c.pendings.Add(made[0].Node, ids(made)...), nil
	}
	return made, false, x.done, nil
}

// late gives planned objects that name a session the session's ID, if its record was made after they
// were planned: adopt knows recorded objects alone. The caller holds commit for the objects, so that
// no session is adopted meanwhile.
func (c *Controller) late(ctx context.Context, all []records.Object) error {
	for i := range all {
		o := &all[i]
		if o.Kind == records.Session || o.Session == "" || records.IsSessionID(o.Session) {
			continue
		}
		s, err := c.o.Records.Named(ctx, o.Tenant, records.Session, o.Session)
		switch {
		case turnstone.KindOf(err) == turnstone.KindNotFound:
		case err != nil:
			return err
		case s.Node == o.Node || c.o.Shared:
			o.Session = s.ID
		}
	}
	return nil
}

func ids(all []records.Object) (list []string) {
	for _, o := range all {
		list = append(list, o.ID)
	}
	return list
}

// reread returns the objects as they are now, if the caller may see them.
func (c *Controller) reread(ctx context.Context, p auth.Principal, op turnstone.Op,
	all []records.Object) ([]records.Object, error) {
	now := make([]records.Object, len(all))
	for i, o := range all {
		x, err := c.find(ctx, op, p, o.Kind, o.ID)
		if err != nil {
			return nil, err
		}
		now[i] = x.Object
	}
	return now, nil
}

// fail ends a creation that the node did not answer well. With a key the objects stay as they are
// if a repetition may succeed; else they fail.
func (c *Controller) fail(ctx context.Context, n creation, made []records.Object,
	err error) error {
	ctx, end := system(ctx)
	defer end()
	err = asked(err)
	if n.key != nil && again(err) && !c.nodes.lostWith(made[0]) {
		for _, o := range made {
			c.unmade.Add(o, !gone(err))
		}
		return err
	}
	c.end(ctx, made, !gone(err))
	// The node may have made some of them, or still make them.
	c.tasks.Go(func() { c.discardAll(made) })
	return err
}

// again reports whether the same call may succeed later, or with a proof to the node that was chosen.
func again(err error) bool {
	kind := turnstone.KindOf(err)
	return api.Retryable(err) || api.IsUnproven(err) || kind == turnstone.KindCanceled ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// gone reports whether the caller left before the error of its call.
func gone(err error) bool {
	return turnstone.KindOf(err) == turnstone.KindCanceled || errors.Is(err, context.Canceled)
}

// end gives objects that were not made their last state. told says that the caller knows: nobody
// has to remove a sandbox then.
func (c *Controller) end(ctx context.Context, all []records.Object, told bool) {
	events := map[records.Kind]records.Event{records.Sandbox: records.CreateFailed,
		records.Turn: records.Cancelled, records.Session: records.Deleted,
		records.Snapshot: records.Deleted}
	for _, o := range all {
		change := records.Change{Event: events[o.Kind]}
		if told && o.Kind == records.Sandbox {
			change.Detail = message.Removed(o.Detail)
		}
		if _, err := c.change(ctx, o, change); err != nil &&
			turnstone.KindOf(err) != turnstone.KindInvalid { // it has a last state
			c.log.Error("a failed creation cannot be recorded", "object", o.ID, "error", err)
		}
	}
}

// lostWith reports whether an object that was asked for is a sandbox whose node is lost: another one may
// be asked for then, elsewhere.
func (r *registry) lostWith(o records.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return o.Kind == records.Sandbox && r.fleet.State(o.Node) == placing.Lost
}

// giveUp ends the creations whose repetition did not come.
func (c *Controller) giveUp(ctx context.Context) { c.abandon(ctx, c.unmade.Take(c.o.Times.Abandon)) }

// abandon ends creations that wait for a repetition.
func (c *Controller) abandon(ctx context.Context, all []inflight.Waiting) {
	for _, w := range all {
		o := w.Object
		func() {
			unlock, err := c.calls.Lock(ctx, lockOf(o))
			if err != nil {
				return
			}
			defer unlock()
			now, err := c.o.Records.Object(ctx, o.Tenant, o.Kind, o.ID)
			if err != nil || answered(now) {
				return
			}
			c.end(ctx, []records.Object{now}, w.Told)
			c.tasks.Go(func() { c.discardAll([]records.Object{now}) })
		}()
	}
}

// discardAll removes from their node what was perhaps made. If the node does not answer, its next
// list shows them as surplus.
func (c *Controller) discardAll(all []records.Object) {
	for _, o := range all {
		ctx, end := context.WithTimeout(c.ctx, c.o.Times.Call)
		if err := c.discard(ctx, o.Node, o); err != nil {
			c.log.Debug("a failed creation is not removed yet", "object", o.ID, "error", err)
		}
		end()
	}
}

// discard removes an object from a node that should not have it. Only sandboxes and turns are
// removed: nothing can make a session or a snapshot again.
func (c *Controller) discard(ctx context.Context, node string, o records.Object) error {
	client, err := c.at(node)
	if err != nil {
		return err
	}
	switch o.Kind {
	case records.Sandbox:
		_, err = client.DeleteSandbox(ctx, connect.NewRequest(&v1.NodeServiceDeleteSandboxRequest{
			Principal: message.Janitor(o.Tenant), Request: &v1.DeleteSandboxRequest{SandboxId: o.ID}}))
	case records.Turn:
		_, err = client.CancelTurn(ctx, connect.NewRequest(&v1.NodeServiceCancelTurnRequest{
			Principal: message.Janitor(o.Tenant), Request: &v1.CancelTurnRequest{TicketId: o.ID}}))
	}
	if isNotFound(err) {
		return nil
	}
	return asked(err)
}

// wrong is the error about a node that answers about something else.
func wrong(node string) error {
	return turnstone.Errorf("node.call", turnstone.KindInternal, "node "+node,
		"answers about another object")
}

// A place is what a request that names a session means.
type place struct {
	name string // as a record has it: the ID, or the name of a session that is new
	id   string // empty: the session is new
	node string // where the session is, or will be; empty: any
}

// inPlace finds the session that a request names. The caller is in the gate.
func (c *Controller) inPlace(ctx context.Context, op turnstone.Op, p auth.Principal,
	scope auth.Scope, name string) (place, error) {
	if name == "" {
		return place{}, nil
	}
	o, err := c.session(ctx, op, p, scope, name)
	if err != nil {
		return place{}, err
	}
	if o.ID != "" {
		return place{name: o.ID, id: o.ID, node: o.Node}, nil
	}
	return place{name: name, node: c.ledger.NodeOf(p.Tenant, name)}, nil
}

// call is the context of a call to a node.
func (c *Controller) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.o.Times.Call)
}

// long is the context of a call that makes machines.
func (c *Controller) long(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.o.Times.Create)
}
