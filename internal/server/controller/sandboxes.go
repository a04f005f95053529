package controller

import (
	"cmp"
	"context"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/records"
)

// A sandboxService serves SandboxService.
type sandboxService struct{ *Controller }

// CreateSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) CreateSandbox(ctx context.Context,
	r *connect.Request[v1.CreateSandboxRequest]) (*connect.Response[v1.CreateSandboxResponse],
	error) {
	const op, scope = "sandbox.create", auth.SandboxesCreate
	p, m := guard.Caller(ctx), r.Msg
	template := m.GetTemplate() + m.GetImage()
	if template == "" && m.GetSnapshotId() == "" {
		template = c.o.Template
	}
	session := m.ContextId
	if records.IsSessionID(session) {
		session = "" // inPlace checks it by its name
	}
	err := p.Allow(auth.Request{Scope: scope, Session: session, Template: template})
	if err == nil && m.ManagedBy != "" {
		err = p.Allow(auth.Request{Scope: auth.SandboxesManage})
	}
	if err != nil {
		return nil, err
	}
	var answer *v1.CreateSandboxResponse
	machine, room := c.nodes.planned(m.Machine, template), &placing.Room{}
	want := placing.Need{Tenant: p.Tenant, Machine: orEmpty(m.Machine), Substrate: m.Substrate,
		Template: template, Planned: machine, Store: m.ContextId != "", Avoid: m.AvoidNodes}
	if template != "" && m.ContextId == "" {
		c.nodes.arrive(want)
	}
	err = c.create(ctx, p, creation{op: op, key: keyOf(p, "CreateSandbox", m), room: room,
		want: quota.Want{Sandboxes: 1, Each: machine, Stores: true},
		plan: func(ctx context.Context) ([]records.Object, error) {
			o, r, err := c.planSandbox(ctx, p, m, want)
			*room = r
			return []records.Object{o}, err
		},
		make: func(ctx context.Context, made []records.Object) (err error) {
			answer, err = c.makeSandbox(ctx, p, m, made[0])
			return err
		},
		again: func(ctx context.Context, made []records.Object) (err error) {
			answer, err = c.sandboxAgain(ctx, p, m.Client, made[0],
				&v1.NodeServiceConnectSandboxRequest{
					Made: &v1.NodeServiceConnectSandboxRequest_Create{Create: m}})
			return err
		}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// planSandbox returns the record of a new sandbox.
func (c *Controller) planSandbox(ctx context.Context, p auth.Principal, m *v1.CreateSandboxRequest,
	want placing.Need) (none records.Object, room placing.Room, err error) {
	const op, scope = "sandbox.create", auth.SandboxesCreate
	in, err := c.inPlace(ctx, op, p, scope, m.ContextId)
	if err != nil {
		return none, room, err
	}
	template := want.Template
	if id := m.GetSnapshotId(); id != "" {
		s, err := c.kept(ctx, op, p, id)
		if err != nil {
			return none, room, err
		}
		if in.node != "" && in.node != s.Node && !c.o.Shared {
			return none, room, unfit(op, id, "is on another node than the session")
		}
		want.Node, template = s.Node, s.Template
	}
	room, err = c.guide.Room(want, in.node)
	return records.Object{Kind: records.Sandbox, ID: string(turnstone.NewSandboxID()),
		Tenant: p.Tenant, Owner: p.Subject, Node: room.Node, Name: m.Name, Session: in.name,
		Template: template, Labels: m.Metadata, ManagedBy: m.ManagedBy}, room, err
}

// kept is find for a snapshot that is there.
func (c *Controller) kept(ctx context.Context, op turnstone.Op, p auth.Principal, id string) (
	message.Seen, error) {
	s, err := c.find(ctx, op, p, records.Snapshot, id)
	if err == nil && s.State.Final() {
		err = p.See(op, id, auth.Owner{})
	}
	return s, err
}

func orEmpty(m *v1.Machine) *v1.Machine {
	if m == nil {
		return &v1.Machine{}
	}
	return m
}

// planned is the machine that a request asks for: what it says, else the template's or the usual one.
func (r *registry) planned(m *v1.Machine, template string) turnstone.Machine {
	cpus, memory, disk := m.GetCpus(), m.GetMemory(), m.GetDisk()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sized(cpus, memory, disk, template)
}

// sized is planned for a caller that holds mu.
func (r *registry) sized(cpus uint32, memory, disk uint64, template string) turnstone.Machine {
	for _, n := range r.all {
		if cpus != 0 && memory != 0 && disk != 0 {
			break
		}
		t := n.templates[template].GetMachine()
		cpus, memory, disk = cmp.Or(cpus, t.GetCpus()), cmp.Or(memory, t.GetMemory()), cmp.Or(disk, t.GetDisk())
	}
	usual := turnstone.DefaultShape()
	return turnstone.Machine{CPUs: int(cpus), Memory: turnstone.Bytes(memory), Disk: turnstone.Bytes(disk)}.
		Over(turnstone.Machine{CPUs: usual.CPUs, Memory: usual.Memory, Disk: usual.Disk})
}

// arrive notes a request that a pool may serve.
func (r *registry) arrive(n placing.Need) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fleet.Arrive(n, r.sizedAs)
}

// sizedAs is sized for the machine of a message.
func (r *registry) sizedAs(m *v1.Machine, template string) turnstone.Machine {
	return r.sized(m.GetCpus(), m.GetMemory(), m.GetDisk(), template)
}

// makeSandbox asks the node for a sandbox that has a record.
func (c *Controller) makeSandbox(ctx context.Context, p auth.Principal, m *v1.CreateSandboxRequest,
	o records.Object) (*v1.CreateSandboxResponse, error) {
	client, err := c.at(o.Node)
	if err != nil {
		return nil, err
	}
	session := ""
	if records.IsSessionID(o.Session) {
		session = o.Session
	}
	ctx, end := c.long(ctx)
	defer end()
	answer, err := client.CreateSandbox(ctx, connect.NewRequest(&v1.NodeServiceCreateSandboxRequest{
		Principal: message.Principal(p), Request: m, SandboxId: o.ID, SessionId: session}))
	if err != nil {
		return nil, err
	}
	return c.made(ctx, p, o, answer.Msg)
}

// made records that a node has made a sandbox, and completes the node's answer.
func (c *Controller) made(ctx context.Context, p auth.Principal, o records.Object,
	answer *v1.CreateSandboxResponse) (*v1.CreateSandboxResponse, error) {
	if answer.GetSandbox().GetSandboxId() != o.ID {
		return nil, wrong(o.Node)
	}
	ctx, end := system(ctx)
	defer end()
	r := message.OfSandbox(o.Tenant, answer.Sandbox)
	after, err := c.change(ctx, o, records.Change{Event: records.Configured, Detail: r.Detail})
	if err != nil && turnstone.KindOf(err) == turnstone.KindInvalid {
		// The node's report was faster, or the sandbox has ended already.
		after, err = c.o.Records.Object(ctx, o.Tenant, o.Kind, o.ID)
	}
	if err != nil {
		return nil, err
	}
	if after.State.Final() {
		return nil, unfit("sandbox.create", o.ID, "is %s: %s", after.State, after.Reason)
	}
	out, err := c.withToken(ctx, p, after, answer.Channel)
	if err == nil {
		out.Phases = answer.Phases
	}
	return out, err
}

// defaultLife is the life of a sandbox's token if neither the sandbox nor the caller's token ends.
const defaultLife = 24 * time.Hour

// withToken returns the answer about a sandbox that is there, with a token of its own. The token
// ends with the sandbox or with the caller's token, and its secret is nowhere else.
func (c *Controller) withToken(ctx context.Context, p auth.Principal, o records.Object,
	channel *v1.Channel) (*v1.CreateSandboxResponse, error) {
	names, err := c.sessionNames(ctx, o.Tenant, o.Session)
	if err != nil {
		return nil, err
	}
	answer := &v1.CreateSandboxResponse{Channel: channel,
		Sandbox: message.Sandbox(message.Seen{Object: o, SessionName: names[o.Session]})}
	if o.State.Final() {
		return answer, nil
	}
	now := time.Now()
	expires := now.Add(defaultLife)
	if e := message.Instant(answer.Sandbox.Expires); !e.IsZero() {
		expires = e
	}
	if longest := min(c.o.Longest, auth.MaxTTL-time.Minute); expires.After(now.Add(longest)) {
		expires = now.Add(longest)
	}
	claims, ok := p.ForSandbox(turnstone.SandboxID(o.ID), expires)
	if !ok || claims.Expires.Before(now.Add(2*time.Second)) {
		return answer, nil // it would grant nothing, or have ended before it arrives
	}
	token, err := c.o.Issuer.Issue(ctx, claims)
	if err != nil {
		return nil, err
	}
	answer.AuthToken, answer.AuthTokenExpires = token.Token.Reveal(), message.Timestamp(token.Expires)
	return answer, nil
}

// sandboxAgain answers a repeated request, which ask has: the same sandbox, and a fresh attestation
// if it is there and has an owner.
func (c *Controller) sandboxAgain(ctx context.Context, p auth.Principal, client *v1.ChannelClient,
	o records.Object, ask *v1.NodeServiceConnectSandboxRequest) (*v1.CreateSandboxResponse, error) {
	if o.State.Final() || client == nil {
		return c.withToken(ctx, p, o, nil)
	}
	ask.Request = &v1.ConnectSandboxRequest{SandboxId: o.ID, Client: client}
	channel, err := c.connectSandbox(ctx, p, o, ask)
	if err != nil {
		return nil, err
	}
	return c.withToken(ctx, p, o, channel)
}

// ConnectSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) ConnectSandbox(ctx context.Context,
	r *connect.Request[v1.ConnectSandboxRequest]) (*connect.Response[v1.ConnectSandboxResponse],
	error) {
	p := guard.Caller(ctx)
	x, err := c.sandbox(ctx, "sandbox.connect", p, auth.SandboxesConnect, r.Msg.SandboxId)
	if err == nil {
		err = alive("sandbox.connect", x.Object)
	}
	if err != nil {
		return nil, err
	}
	channel, err := c.connectSandbox(ctx, p, x.Object,
		&v1.NodeServiceConnectSandboxRequest{Request: r.Msg})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectSandboxResponse{Channel: channel}), nil
}

func (c *Controller) connectSandbox(ctx context.Context, p auth.Principal, o records.Object,
	m *v1.NodeServiceConnectSandboxRequest) (*v1.Channel, error) {
	client, err := c.at(o.Node)
	if err != nil {
		return nil, err
	}
	ctx, end := c.call(ctx)
	defer end()
	m.Principal = message.Principal(p)
	answer, err := client.ConnectSandbox(ctx, connect.NewRequest(m))
	if err != nil {
		return nil, asked(err)
	}
	return answer.Msg.Channel, nil
}

// GetSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) GetSandbox(ctx context.Context, r *connect.Request[v1.GetSandboxRequest]) (
	*connect.Response[v1.GetSandboxResponse], error) {
	x, err := c.sandbox(ctx, "sandbox.get", guard.Caller(ctx), auth.SandboxesRead, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetSandboxResponse{Sandbox: c.shown(x)}), nil
}

// sandboxQuery returns the query of a filter.
func (c *Controller) sandboxQuery(ctx context.Context, p auth.Principal, f *v1.SandboxFilter) (
	query, error) {
	q := query{filter: records.Filter{Kind: records.Sandbox, Name: f.GetName(),
		Template: f.GetTemplate(), Labels: f.GetMetadata(), IDs: f.GetSandboxIds(),
		ManagedBy: f.GetManagedBy()}}
	for _, s := range f.GetStates() {
		q.filter.States = append(q.filter.States, message.SandboxStates.ToRecord(s))
	}
	return q, c.inSession(ctx, p.Tenant, f.GetContextId(), &q.filter)
}

// ListSandboxes implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) ListSandboxes(ctx context.Context,
	r *connect.Request[v1.ListSandboxesRequest]) (*connect.Response[v1.ListSandboxesResponse],
	error) {
	p := guard.Caller(ctx)
	q, err := c.sandboxQuery(ctx, p, r.Msg.Filter)
	if err != nil {
		return nil, err
	}
	all, next, err := c.page(ctx, p, q, pageOf(r.Msg.Page))
	if err != nil {
		return nil, err
	}
	answer := &v1.ListSandboxesResponse{NextPageToken: next}
	for _, x := range all {
		answer.Sandboxes = append(answer.Sandboxes, c.shown(x))
	}
	return connect.NewResponse(answer), nil
}

func pageOf(p *v1.Page) records.Page {
	return records.Page{Size: int(p.GetSize()), Token: p.GetToken()}
}

// WatchSandboxes implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) WatchSandboxes(ctx context.Context,
	r *connect.Request[v1.WatchSandboxesRequest],
	stream *connect.ServerStream[v1.WatchSandboxesResponse]) error {
	p := guard.Caller(ctx)
	q, err := c.sandboxQuery(ctx, p, r.Msg.Filter)
	if err != nil {
		return err
	}
	return c.watch(ctx, p, q, func(e v1.WatchEvent, x *message.Seen) error {
		m := &v1.WatchSandboxesResponse{Event: e}
		if x != nil {
			m.Sandbox = c.shown(*x)
		}
		return stream.Send(m)
	})
}

// DeleteSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) DeleteSandbox(ctx context.Context,
	r *connect.Request[v1.DeleteSandboxRequest]) (*connect.Response[v1.DeleteSandboxResponse],
	error) {
	const op = "sandbox.delete"
	p := guard.Caller(ctx)
	x, err := c.sandbox(ctx, op, p, auth.SandboxesDelete, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	done := func(x message.Seen) (*connect.Response[v1.DeleteSandboxResponse], error) {
		if !r.Msg.Keep && x.Kind == records.Sandbox {
			ctx, end := system(ctx)
			defer end()
			after, err := c.change(ctx, x.Object, records.Change{Detail: message.Removed(x.Detail)})
			if err != nil {
				return nil, err
			}
			x.Object = after
		}
		return connect.NewResponse(&v1.DeleteSandboxResponse{Sandbox: message.Sandbox(x)}), nil
	}
	var last *connect.Response[v1.DeleteSandboxResponse]
	client, err := c.at(x.Node)
	if err == nil {
		ctx, end := c.long(ctx)
		defer end()
		last, err = client.DeleteSandbox(ctx, connect.NewRequest(&v1.NodeServiceDeleteSandboxRequest{
			Principal: message.Principal(p), Request: r.Msg}))
	}
	if x.State.Final() {
		return done(x) // whatever the node says: what is left of it is not in use
	}
	// A lost node is told to remove it when it comes back.
	if err != nil && !isNotFound(err) && !c.nodes.lostWith(x.Object) {
		return nil, asked(err)
	}
	ctx, end := system(ctx)
	defer end()
	event := records.StopRequested
	if x.State == records.Creating {
		event = records.CreateFailed
	}
	change := records.Change{Event: event}
	if s := last; s != nil && s.Msg.GetSandbox().GetUsed() != nil { // what it used until its end
		change.Detail = message.OfSandbox(x.Tenant, s.Msg.Sandbox).Detail
	}
	after, err := c.change(ctx, x.Object, change)
	if err != nil && turnstone.KindOf(err) == turnstone.KindInvalid { // the report was faster
		after, err = c.o.Records.Object(ctx, x.Tenant, x.Kind, x.ID)
	}
	if err != nil {
		return nil, err
	}
	return done(message.Seen{Object: after, SessionName: x.SessionName})
}
