package controller

import (
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/records"
)

// anonymous stands for the ID of a session that has neither a name nor, yet, an ID. Patterns that
// match every name or every ID match it.
const anonymous = "s_000000000000000000"

// newID returns the ID of a new object.
func newID(prefix string) string {
	return prefix + strings.TrimPrefix(string(turnstone.NewTurnID()), "t_")
}

// sessionNames returns the names of the sessions that records name. A record has a session's ID, or
// the name of a session that its node has not made yet.
func (c *Controller) sessionNames(ctx context.Context, tenant string, sessions ...string) (
	map[string]string, error) {
	names := map[string]string{"": ""}
	var ids []string
	for _, s := range sessions {
		names[s] = s
		if records.IsSessionID(s) && !slices.Contains(ids, s) {
			ids = append(ids, s)
		}
	}
	if len(ids) == 0 {
		return names, nil
	}
	all, _, err := c.o.Records.List(ctx, tenant, records.Filter{Kind: records.Session, IDs: ids},
		records.Page{Size: pageSize})
	for _, s := range all {
		if s.Name != "" {
			names[s.ID] = s.Name
		}
	}
	return names, err
}

// owner says to whom an object belongs, for package auth.
func owner(o records.Object, session string) auth.Owner {
	w := auth.Owner{Tenant: o.Tenant, Session: session, Template: o.Template}
	switch o.Kind {
	case records.Sandbox:
		w.Sandbox = turnstone.SandboxID(o.ID)
	case records.Snapshot:
		w.Sandbox = turnstone.SandboxID(o.Labels[message.LabelParent])
	case records.Session:
		if w.Session = o.Name; o.Name == "" {
			w.Session = o.ID
		}
	case records.Turn:
		if session == "" {
			w.Session = anonymous
		}
	}
	return w
}

// find returns an object that the caller may see. The error about one that does not exist, and the
// work, are those about one of another tenant.
func (c *Controller) find(ctx context.Context, op turnstone.Op, p auth.Principal,
	kind records.Kind, id string) (message.Seen, error) {
	o, err := c.o.Records.Object(ctx, p.Tenant, kind, id)
	if err != nil {
		if turnstone.KindOf(err) != turnstone.KindNotFound {
			return message.Seen{}, err
		}
		o = records.Object{}
	}
	session := o.Session
	if session == "" {
		session = anonymous // the same work
	}
	names, err := c.sessionNames(ctx, p.Tenant, session)
	if err != nil {
		return message.Seen{}, err
	}
	x := message.Seen{Object: o, SessionName: names[o.Session]}
	return x, p.See(op, id, owner(o, x.SessionName))
}

// sandbox is find for a sandbox, with the whole decision about a request of a scope.
func (c *Controller) sandbox(ctx context.Context, op turnstone.Op, p auth.Principal,
	scope auth.Scope, id string) (message.Seen, error) {
	err := p.Allow(auth.Request{Scope: scope, Sandbox: turnstone.SandboxID(id)})
	if err != nil {
		return message.Seen{}, err
	}
	return c.find(ctx, op, p, records.Sandbox, id)
}

// session returns the session with a name or an ID. Without an error there is none of this name if
// it has no ID.
func (c *Controller) session(ctx context.Context, op turnstone.Op, p auth.Principal,
	scope auth.Scope, name string) (records.Object, error) {
	if records.IsSessionID(name) {
		x, err := c.find(ctx, op, p, records.Session, name)
		if err == nil && x.State.Final() {
			err = p.See(op, name, auth.Owner{})
		}
		return x.Object, err
	}
	if err := p.Allow(auth.Request{Scope: scope, Session: name}); err != nil {
		return records.Object{}, err
	}
	o, err := c.o.Records.Named(ctx, p.Tenant, records.Session, name)
	if err != nil && turnstone.KindOf(err) == turnstone.KindNotFound {
		return records.Object{}, nil
	}
	return o, err
}

// existing is session for one that has to exist.
func (c *Controller) existing(ctx context.Context, op turnstone.Op, p auth.Principal,
	scope auth.Scope, name string) (records.Object, error) {
	o, err := c.session(ctx, op, p, scope, name)
	if err == nil && o.ID == "" {
		err = p.See(op, name, auth.Owner{})
	}
	return o, err
}

// pageSize is the most objects of a page.
const pageSize = 100

// A query is what a caller lists or watches.
type query struct {
	filter records.Filter
	match  func(records.Object) bool // what a filter cannot say; may be nil
}

// page returns a page of what the caller may see of a query. It may be short, and is empty only at
// the end.
func (c *Controller) page(ctx context.Context, p auth.Principal, q query, page records.Page) (
	[]message.Seen, string, error) {
	for {
		all, next, err := c.o.Records.List(ctx, p.Tenant, q.filter, page)
		if err != nil {
			return nil, "", err
		}
		if q.match != nil {
			all = slices.DeleteFunc(all, func(o records.Object) bool { return !q.match(o) })
		}
		found, err := c.join(ctx, p, all)
		if err != nil || len(found) > 0 || next == "" {
			return found, next, err
		}
		page.Token = next
	}
}

// join adds the names of sessions to objects, and leaves out what the caller may not see.
func (c *Controller) join(ctx context.Context, p auth.Principal, all []records.Object) (
	[]message.Seen, error) {
	var sessions []string
	for _, o := range all {
		sessions = append(sessions, o.Session)
	}
	names, err := c.sessionNames(ctx, p.Tenant, sessions...)
	if err != nil {
		return nil, err
	}
	var found []message.Seen
	for _, o := range all {
		x := message.Seen{Object: o, SessionName: names[o.Session]}
		if p.Sees(owner(o, x.SessionName)) {
			found = append(found, x)
		}
	}
	return found, nil
}

// inSession restricts a filter to a session, by its name or ID.
func (c *Controller) inSession(ctx context.Context, tenant, name string, f *records.Filter) error {
	if name == "" {
		return nil
	}
	f.Sessions = []string{name}
	o, err := c.o.Records.Named(ctx, tenant, records.Session, name)
	if err == nil {
		f.Sessions = append(f.Sessions, o.ID)
	} else if turnstone.KindOf(err) == turnstone.KindNotFound {
		err = nil
	}
	return err
}

// change changes a record and notes it.
func (c *Controller) change(ctx context.Context, o records.Object, ch records.Change) (
	records.Object, error) {
	err := c.committing(ctx, o.Tenant, func() error {
		after, err := c.o.Records.Change(ctx, o.Node, o.Kind, o.ID, ch)
		if err == nil {
			c.note(after)
			o = after
		}
		return err
	}, o)
	return o, err
}

// note tells of a change. The caller holds commit for the objects.
func (c *Controller) note(all ...records.Object) {
	for _, o := range all {
		c.ledger.Note(o)
		c.hub.changed(o)
	}
}

// unfit is the error about a request that an object's state does not permit.
func unfit(op turnstone.Op, id, format string, args ...any) error {
	return &api.Status{Code: connect.CodeFailedPrecondition,
		Err: turnstone.Errorf(op, turnstone.KindInvalid, id, format, args...)}
}

// alive reports a sandbox that has ended, or is not there yet.
func alive(op turnstone.Op, o records.Object) error {
	if o.State == records.Ready || o.State == records.Running {
		return nil
	}
	return unfit(op, o.ID, "is %s", o.State)
}

// asked converts the error of a call to a node for the caller.
func asked(err error) error {
	if err == nil {
		return nil
	}
	err = api.FromConnect(err)
	if turnstone.KindOf(err) == turnstone.KindUnavailable && api.RetryAfter(err) == 0 {
		return &api.Status{RetryAfter: time.Second, Err: err}
	}
	return err
}

// isNotFound reports that a node does not have what it was asked about.
func isNotFound(err error) bool {
	return err != nil && turnstone.KindOf(api.FromConnect(err)) == turnstone.KindNotFound
}

// keyOf returns the idempotency key of a request, or nil if it has none.
func keyOf(p auth.Principal, method string, m proto.Message) *records.Key {
	key := api.IdempotencyKey(m)
	if key == "" {
		return nil
	}
	return &records.Key{Tenant: p.Tenant, Method: method, Key: key, Request: api.RequestDigest(m)}
}

// system is a context for what has to be done after the caller is gone.
func system(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
}
