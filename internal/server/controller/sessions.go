package controller

import (
	"context"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/guide"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/records"
)

// A sessionService serves SessionService.
type sessionService struct{ *Controller }

// sessionOf returns the message of a session's record.
func sessionOf(o records.Object) *v1.Session { return message.Session(message.Seen{Object: o}) }

// properName reports a name that would be taken for an ID.
func properName(op turnstone.Op, name string) error {
	if records.IsSessionID(name) {
		return turnstone.Errorf(op, turnstone.KindInvalid, "session "+name,
			"the name has the form of an ID").WithHint("use another name")
	}
	return nil
}

// CreateSession implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) CreateSession(ctx context.Context,
	r *connect.Request[v1.CreateSessionRequest]) (*connect.Response[v1.CreateSessionResponse],
	error) {
	const op = "session.create"
	p, m := guard.Caller(ctx), r.Msg
	name := m.Name
	if name == "" {
		name = anonymous
	} else if err := properName(op, name); err != nil {
		return nil, err
	}
	if err := p.Allow(auth.Request{Scope: auth.SessionsWrite, Session: name}); err != nil {
		return nil, err
	}
	answer := &v1.CreateSessionResponse{}
	err := c.create(ctx, p, creation{op: op, key: keyOf(p, "CreateSession", m),
		plan: func(context.Context) ([]records.Object, error) {
			near := ""
			if m.Name != "" {
				near = c.ledger.NodeOf(p.Tenant, m.Name)
			}
			room, err := c.guide.Room(placing.Need{Avoid: m.AvoidNodes}, near)
			return []records.Object{{Kind: records.Session, ID: string(turnstone.NewSessionID()),
				Tenant: p.Tenant, Owner: p.Subject, Node: room.Node, Name: m.Name}}, err
		},
		make: func(ctx context.Context, made []records.Object) error {
			return c.makeSession(ctx, p, m, made[0], answer)
		},
		again: func(ctx context.Context, made []records.Object) (err error) {
			if answer.Session = sessionOf(made[0]); made[0].State.Final() {
				return nil
			}
			answer.Channel, err = c.connectSession(ctx, p, made[0],
				&v1.NodeServiceConnectSessionRequest{Create: m, Request: &v1.ConnectSessionRequest{
					Session: made[0].ID, Client: m.Client}})
			return err
		}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// makeSession asks the node for a session that has a record.
func (c *Controller) makeSession(ctx context.Context, p auth.Principal, m *v1.CreateSessionRequest,
	o records.Object, to *v1.CreateSessionResponse) error {
	client, err := c.at(o.Node)
	if err != nil {
		return err
	}
	ask, end := c.call(ctx)
	defer end()
	answer, err := client.CreateSession(ask, connect.NewRequest(
		&v1.NodeServiceCreateSessionRequest{Principal: message.Principal(p), Request: m,
			SessionId: o.ID}))
	if err != nil {
		return err
	}
	if answer.Msg.Session.GetSessionId() != o.ID {
		return wrong(o.Node)
	}
	ctx, end = system(ctx)
	defer end()
	after, err := c.change(ctx, o,
		records.Change{Detail: message.OfSession(o.Tenant, answer.Msg.Session).Detail})
	to.Session, to.Channel = sessionOf(after), answer.Msg.Channel
	return err
}

// GetSession implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) GetSession(ctx context.Context, r *connect.Request[v1.GetSessionRequest]) (
	*connect.Response[v1.GetSessionResponse], error) {
	o, err := c.existing(ctx, "session.get", guard.Caller(ctx), auth.SessionsRead, r.Msg.Session)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetSessionResponse{Session: sessionOf(o)}), nil
}

func sessionQuery(f *v1.SessionFilter) query {
	q := query{filter: records.Filter{Kind: records.Session, Prefix: f.GetNamePrefix(),
		Named: f.GetNamed(), States: []records.State{records.Kept}}}
	if f.GetRunning() {
		q.match = func(o records.Object) bool { return sessionOf(o).Running > 0 }
	}
	return q
}

// ListSessions implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) ListSessions(ctx context.Context,
	r *connect.Request[v1.ListSessionsRequest]) (*connect.Response[v1.ListSessionsResponse], error) {
	all, next, err := c.page(ctx, guard.Caller(ctx), sessionQuery(r.Msg.Filter), pageOf(r.Msg.Page))
	if err != nil {
		return nil, err
	}
	answer := &v1.ListSessionsResponse{NextPageToken: next}
	for _, x := range all {
		answer.Sessions = append(answer.Sessions, message.Session(x))
	}
	return connect.NewResponse(answer), nil
}

// WatchSessions implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) WatchSessions(ctx context.Context,
	r *connect.Request[v1.WatchSessionsRequest],
	stream *connect.ServerStream[v1.WatchSessionsResponse]) error {
	return c.watch(ctx, guard.Caller(ctx), sessionQuery(r.Msg.Filter),
		func(e v1.WatchEvent, x *message.Seen) error {
			m := &v1.WatchSessionsResponse{Event: e}
			if x != nil {
				m.Session = message.Session(*x)
			}
			return stream.Send(m)
		})
}

// ConnectSession implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) ConnectSession(ctx context.Context,
	r *connect.Request[v1.ConnectSessionRequest]) (*connect.Response[v1.ConnectSessionResponse],
	error) {
	p := guard.Caller(ctx)
	o, err := c.existing(ctx, "session.connect", p, auth.SessionsRead, r.Msg.Session)
	if err != nil {
		return nil, err
	}
	channel, err := c.connectSession(ctx, p, o,
		&v1.NodeServiceConnectSessionRequest{Request: r.Msg})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectSessionResponse{Session: sessionOf(o),
		Channel: channel}), nil
}

// connectSession asks for an attestation by the session's ID: its name may be another's by now.
func (c *Controller) connectSession(ctx context.Context, p auth.Principal, o records.Object,
	m *v1.NodeServiceConnectSessionRequest) (*v1.Channel, error) {
	m.Principal, m.SessionId = message.Principal(p), o.ID
	var answer *connect.Response[v1.ConnectSessionResponse]
	_, err := c.guide.Call(ctx, o, placing.Need{}, func(_ records.Object, n guide.Node) (err error) {
		ctx, end := c.call(ctx)
		defer end()
		answer, err = n.ConnectSession(ctx, connect.NewRequest(m))
		return err
	})
	if err != nil {
		return nil, asked(err)
	}
	return answer.Msg.Channel, nil
}

// ConnectNode implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) ConnectNode(ctx context.Context,
	r *connect.Request[v1.ConnectNodeRequest]) (*connect.Response[v1.ConnectNodeResponse], error) {
	p, name := guard.Caller(ctx), r.Msg.Node
	if name == "" {
		var err error
		if name, err = c.nodes.able(""); err != nil {
			return nil, err
		}
	}
	client, err := c.at(name)
	if err != nil {
		return nil, err
	}
	ctx, end := c.call(ctx)
	defer end()
	answer, err := client.ConnectNode(ctx, connect.NewRequest(&v1.NodeServiceConnectNodeRequest{
		Principal: message.Principal(p), Request: r.Msg}))
	if err != nil {
		return nil, asked(err)
	}
	return connect.NewResponse(&v1.ConnectNodeResponse{Node: name,
		Channel: answer.Msg.Channel}), nil
}

// RenameSession implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) RenameSession(ctx context.Context,
	r *connect.Request[v1.RenameSessionRequest]) (*connect.Response[v1.RenameSessionResponse],
	error) {
	const op = "session.rename"
	p, to := guard.Caller(ctx), r.Msg.NewName
	if err := properName(op, to); err != nil {
		return nil, err
	}
	if err := p.Allow(auth.Request{Scope: auth.SessionsWrite, Session: to}); err != nil {
		return nil, err
	}
	o, err := c.existing(ctx, op, p, auth.SessionsWrite, r.Msg.Session)
	if err != nil {
		return nil, err
	}
	// First the record: only records know the names of all nodes.
	after, err := c.change(ctx, o, records.Change{Name: &to})
	if err != nil {
		return nil, err
	}
	after, err = c.guide.Call(ctx, after, placing.Need{}, func(_ records.Object, n guide.Node) error {
		ask, end := c.call(ctx)
		defer end()
		_, err := n.RenameSession(ask, connect.NewRequest(&v1.NodeServiceRenameSessionRequest{
			Principal: message.Principal(p), Request: r.Msg, SessionId: o.ID}))
		return err
	})
	if err != nil {
		ctx, end := system(ctx)
		defer end()
		// If the node has renamed it after all, its report says so.
		if _, back := c.change(ctx, after, records.Change{Name: &o.Name}); back != nil {
			c.log.Error("a session keeps a name that its node refused", "session", o.ID,
				"error", back)
		}
		return nil, asked(err)
	}
	return connect.NewResponse(&v1.RenameSessionResponse{Session: sessionOf(after)}), nil
}

// DeleteSession implements turnstonev1connect.SessionServiceHandler.
func (c sessionService) DeleteSession(ctx context.Context,
	r *connect.Request[v1.DeleteSessionRequest]) (*connect.Response[v1.DeleteSessionResponse],
	error) {
	p := guard.Caller(ctx)
	o, err := c.existing(ctx, "session.delete", p, auth.SessionsDelete, r.Msg.Session)
	if err != nil {
		return nil, err
	}
	o, err = c.guide.Call(ctx, o, placing.Need{}, func(_ records.Object, n guide.Node) error {
		ask, end := c.call(ctx)
		defer end()
		_, err := n.DeleteSession(ask, connect.NewRequest(&v1.NodeServiceDeleteSessionRequest{
			Principal: message.Principal(p), Request: r.Msg, SessionId: o.ID}))
		return err
	})
	if err != nil && !isNotFound(err) {
		return nil, asked(err)
	}
	ctx, end := system(ctx)
	defer end()
	if err := c.remove(ctx, o); err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DeleteSessionResponse{Session: sessionOf(o)}), nil
}
