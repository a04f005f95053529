package controller

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/records"
)

// control finds a sandbox that is there, and its node.
func (c *Controller) control(ctx context.Context, op turnstone.Op, p auth.Principal,
	scope auth.Scope, id string) (message.Seen, connectv1.NodeServiceClient, error) {
	x, err := c.sandbox(ctx, op, p, scope, id)
	if err == nil {
		err = alive(op, x.Object)
	}
	if err != nil {
		return x, nil, err
	}
	client, err := c.at(x.Node)
	return x, client, err
}

// told records what a node answered about a sandbox, unless it has reported something newer.
func (c *Controller) told(ctx context.Context, x message.Seen, s *v1.Sandbox) (*v1.Sandbox, error) {
	if s.GetSandboxId() != x.ID {
		return nil, wrong(x.Node)
	}
	ctx, end := system(ctx)
	defer end()
	r := message.OfSandbox(x.Tenant, s)
	if !r.Valid() {
		return nil, wrong(x.Node)
	}
	if _, err := c.apply(ctx, x.Node, []message.Report{r}); err != nil {
		return nil, err
	}
	after, err := c.o.Records.Object(ctx, x.Tenant, x.Kind, x.ID)
	if err != nil {
		return nil, err
	}
	return message.Sandbox(message.Seen{Object: after, SessionName: x.SessionName}), nil
}

// PauseSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) PauseSandbox(ctx context.Context,
	r *connect.Request[v1.PauseSandboxRequest]) (*connect.Response[v1.PauseSandboxResponse], error) {
	p := guard.Caller(ctx)
	x, client, err := c.control(ctx, "sandbox.pause", p, auth.SandboxesControl, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	ask, end := c.long(ctx)
	defer end()
	answer, err := client.PauseSandbox(ask, connect.NewRequest(&v1.NodeServicePauseSandboxRequest{
		Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	s, err := c.told(ctx, x, answer.Msg.Sandbox)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.PauseSandboxResponse{Sandbox: s}), nil
}

// ResumeSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) ResumeSandbox(ctx context.Context,
	r *connect.Request[v1.ResumeSandboxRequest]) (*connect.Response[v1.ResumeSandboxResponse],
	error) {
	p := guard.Caller(ctx)
	x, client, err := c.control(ctx, "sandbox.resume", p, auth.SandboxesControl, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	ask, end := c.long(ctx)
	defer end()
	answer, err := client.ResumeSandbox(ask, connect.NewRequest(
		&v1.NodeServiceResumeSandboxRequest{Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	s, err := c.told(ctx, x, answer.Msg.Sandbox)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ResumeSandboxResponse{Sandbox: s}), nil
}

// SetSandboxTimeout implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) SetSandboxTimeout(ctx context.Context,
	r *connect.Request[v1.SetSandboxTimeoutRequest]) (
	*connect.Response[v1.SetSandboxTimeoutResponse], error) {
	p := guard.Caller(ctx)
	x, client, err := c.control(ctx, "sandbox.timeout", p, auth.SandboxesControl, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	ask, end := c.call(ctx)
	defer end()
	answer, err := client.SetSandboxTimeout(ask, connect.NewRequest(
		&v1.NodeServiceSetSandboxTimeoutRequest{Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	s, err := c.told(ctx, x, answer.Msg.Sandbox)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SetSandboxTimeoutResponse{Sandbox: s}), nil
}

// ExposePort implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) ExposePort(ctx context.Context, r *connect.Request[v1.ExposePortRequest]) (
	*connect.Response[v1.ExposePortResponse], error) {
	p := guard.Caller(ctx)
	_, client, err := c.control(ctx, "sandbox.expose", p, auth.SandboxesExpose, r.Msg.SandboxId)
	if err != nil {
		return nil, err
	}
	ask, end := c.call(ctx)
	defer end()
	answer, err := client.ExposePort(ask, connect.NewRequest(&v1.NodeServiceExposePortRequest{
		Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	return connect.NewResponse(answer.Msg), nil
}

// ForkSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) ForkSandbox(ctx context.Context,
	r *connect.Request[v1.ForkSandboxRequest]) (*connect.Response[v1.ForkSandboxResponse], error) {
	const op = "sandbox.fork"
	p, m := guard.Caller(ctx), r.Msg
	x, err := c.sandbox(ctx, op, p, auth.SandboxesControl, m.SandboxId)
	if err != nil {
		return nil, err
	}
	answer := &v1.ForkSandboxResponse{}
	err = c.create(ctx, p, creation{op: op, key: keyOf(p, "ForkSandbox", m),
		want: quota.Want{Sandboxes: len(m.Clients), Each: c.nodes.planned(message.Sandbox(x).GetMachine(), x.Template), Stores: true},
		plan: func(context.Context) (all []records.Object, err error) {
			for i := range m.Clients {
				o := x.Object
				o.ID, o.Owner, o.Name, o.ManagedBy = string(turnstone.NewSandboxID()), p.Subject, "", ""
				if len(m.Names) > 0 {
					o.Name = m.Names[i]
				}
				o.Detail, o.Expires = nil, time.Time{}
				all = append(all, o)
			}
			return all, alive(op, x.Object)
		},
		make: func(ctx context.Context, made []records.Object) error {
			return c.makeClones(ctx, p, m, made, answer)
		},
		again: func(ctx context.Context, made []records.Object) error {
			for i, o := range made {
				clone, err := c.sandboxAgain(ctx, p, m.Clients[i], o,
					&v1.NodeServiceConnectSandboxRequest{
						Made: &v1.NodeServiceConnectSandboxRequest_Fork{Fork: m}})
				if err != nil {
					return err
				}
				answer.Clones = append(answer.Clones, clone)
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// makeClones asks the node for clones that have records.
func (c *Controller) makeClones(ctx context.Context, p auth.Principal, m *v1.ForkSandboxRequest,
	all []records.Object, to *v1.ForkSandboxResponse) error {
	client, err := c.at(all[0].Node)
	if err != nil {
		return err
	}
	ctx, end := c.long(ctx)
	defer end()
	answer, err := client.ForkSandbox(ctx, connect.NewRequest(&v1.NodeServiceForkSandboxRequest{
		Principal: message.Principal(p), Request: m, SandboxIds: ids(all)}))
	if err != nil {
		return err
	}
	if len(answer.Msg.Clones) != len(all) {
		return wrong(all[0].Node)
	}
	for i, o := range all {
		clone, err := c.made(ctx, p, o, answer.Msg.Clones[i])
		if err != nil {
			return err
		}
		to.Clones = append(to.Clones, clone)
	}
	return nil
}

// SnapshotSandbox implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) SnapshotSandbox(ctx context.Context,
	r *connect.Request[v1.SnapshotSandboxRequest]) (*connect.Response[v1.SnapshotSandboxResponse],
	error) {
	const op = "sandbox.snapshot"
	p, m := guard.Caller(ctx), r.Msg
	x, err := c.sandbox(ctx, op, p, auth.SandboxesControl, m.SandboxId)
	if err != nil {
		return nil, err
	}
	answer := &v1.SnapshotSandboxResponse{}
	err = c.create(ctx, p, creation{op: op, key: keyOf(p, "SnapshotSandbox", m), want: quota.Want{Stores: true},
		plan: func(context.Context) ([]records.Object, error) {
			return []records.Object{{Kind: records.Snapshot, ID: newID("sn_"), Tenant: p.Tenant,
				Owner: p.Subject, Node: x.Node, Session: x.Object.Session, Template: x.Template,
				Labels: map[string]string{message.LabelParent: x.ID}}}, alive(op, x.Object)
		},
		make: func(ctx context.Context, made []records.Object) (err error) {
			answer.Snapshot, err = c.makeSnapshot(ctx, p, m, made[0])
			return err
		},
		again: func(_ context.Context, made []records.Object) error {
			answer.Snapshot = message.Snapshot(message.Seen{Object: made[0], SessionName: x.SessionName})
			return nil
		}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// makeSnapshot asks the node for a snapshot that has a record.
func (c *Controller) makeSnapshot(ctx context.Context, p auth.Principal,
	m *v1.SnapshotSandboxRequest, o records.Object) (*v1.Snapshot, error) {
	client, err := c.at(o.Node)
	if err != nil {
		return nil, err
	}
	ask, end := c.long(ctx)
	defer end()
	answer, err := client.SnapshotSandbox(ask, connect.NewRequest(
		&v1.NodeServiceSnapshotSandboxRequest{Principal: message.Principal(p), Request: m,
			SnapshotId: o.ID}))
	if err != nil {
		return nil, err
	}
	if answer.Msg.Snapshot.GetSnapshotId() != o.ID {
		return nil, wrong(o.Node)
	}
	ctx, end = system(ctx)
	defer end()
	after, err := c.change(ctx, o,
		records.Change{Detail: message.OfSnapshot(o.Tenant, answer.Msg.Snapshot).Detail})
	return message.Snapshot(message.Seen{Object: after, SessionName: ""}), err
}

// ListSnapshots implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) ListSnapshots(ctx context.Context,
	r *connect.Request[v1.ListSnapshotsRequest]) (*connect.Response[v1.ListSnapshotsResponse],
	error) {
	q := query{filter: records.Filter{Kind: records.Snapshot, States: []records.State{records.Kept}}}
	if id := r.Msg.SandboxId; id != "" {
		q.filter.Labels = map[string]string{message.LabelParent: id}
	}
	all, next, err := c.page(ctx, guard.Caller(ctx), q, pageOf(r.Msg.Page))
	if err != nil {
		return nil, err
	}
	answer := &v1.ListSnapshotsResponse{NextPageToken: next}
	for _, x := range all {
		answer.Snapshots = append(answer.Snapshots, message.Snapshot(x))
	}
	return connect.NewResponse(answer), nil
}

// DeleteSnapshot implements turnstonev1connect.SandboxServiceHandler.
func (c sandboxService) DeleteSnapshot(ctx context.Context,
	r *connect.Request[v1.DeleteSnapshotRequest]) (*connect.Response[v1.DeleteSnapshotResponse],
	error) {
	p := guard.Caller(ctx)
	x, err := c.kept(ctx, "snapshot.delete", p, r.Msg.SnapshotId)
	if err != nil {
		return nil, err
	}
	client, err := c.at(x.Node)
	if err != nil {
		return nil, err
	}
	ask, end := c.call(ctx)
	defer end()
	_, err = client.DeleteSnapshot(ask, connect.NewRequest(&v1.NodeServiceDeleteSnapshotRequest{
		Principal: message.Principal(p), Request: r.Msg}))
	if err != nil && !isNotFound(err) {
		return nil, asked(err)
	}
	ctx, end = system(ctx)
	defer end()
	return connect.NewResponse(&v1.DeleteSnapshotResponse{}), c.remove(ctx, x.Object)
}

// remove records that a session or a snapshot is gone.
func (c *Controller) remove(ctx context.Context, o records.Object) error {
	_, err := c.change(ctx, o, records.Change{Event: records.Deleted})
	if err != nil && turnstone.KindOf(err) == turnstone.KindInvalid { // the report was faster
		return nil
	}
	return err
}
