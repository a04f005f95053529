package control

import (
	"cmp"
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
)

// session returns a session of the principal's tenant, by its name or ID.
func (s *Service) session(ctx context.Context, p *v1.Principal, ref string) (*tenants.State,
	turnstone.SessionInfo, error) {
	st, err := s.find(p, kindSession, ref)
	if err != nil {
		return nil, turnstone.SessionInfo{}, err
	}
	if databaseStamp(st) == "" { // a look would make a database
		return nil, turnstone.SessionInfo{}, missing(kindSession, ref)
	}
	g, err := st.Executor.Session(ctx, ref)
	if err != nil {
		return nil, turnstone.SessionInfo{}, hide(err, kindSession, ref)
	}
	i := turnstone.SessionInfo{Session: g.Session, Turns: len(g.Turns), Used: g.Session.Created}
	for n, t := range g.Turns {
		if t.Status == turnstone.TurnRunning {
			i.Running++
		}
		if n == 0 { // the newest
			i.Used = t.Started
		}
	}
	return st, i, nil
}

// named returns a session of the principal's tenant that a caller named: by ref, and by id if the
// controller has looked for it. A controller selects no other session.
func (s *Service) named(ctx context.Context, p *v1.Principal, ref, id string) (*tenants.State,
	turnstone.SessionInfo, error) {
	st, i, err := s.session(ctx, p, cmp.Or(id, ref))
	if err == nil && !isSession(i.Session, ref) {
		err = missing(kindSession, ref)
	}
	return st, i, hide(err, kindSession, ref)
}

// CreateSession makes a session that belongs to the client's key. The same ID answers the same
// session.
func (s *Service) CreateSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceCreateSessionRequest]) (
	*connect.Response[v1.CreateSessionResponse], error) {
	p, q, id := r.Msg.Principal, r.Msg.Request, turnstone.SessionID(r.Msg.SessionId)
	if err := noOwner("session.create", q.Owner, "a session"); err != nil {
		return nil, err
	}
	if _, err := s.caller(ctx, p, q, q.Client); err != nil {
		return nil, err
	}
	client, caller, err := s.client(p, q.Client, "")
	if err != nil {
		return nil, err
	}
	st, err := s.o.Tenants.Of(ctx, p.Tenant)
	if err != nil {
		return nil, exhausted(err)
	}
	if err := st.Room(); err != nil {
		return nil, exhausted(err)
	}
	s.attach(st)
	made, err := st.Executor.CreateSession(st.Owners.Limit(ctx, caller, owners.Own), id, q.Name)
	if err != nil {
		return nil, exhausted(err)
	}
	// a session that exists is not claimed: it could be the operator's
	if err := st.Owners.May(made.ID, caller, owners.Own); err != nil {
		return nil, taken("session.create", cmp.Or(q.Name, string(made.ID)))
	}
	s.lookSessions(ctx, st, true)
	c, err := s.attestNode(ctx, client)
	if err != nil {
		return nil, err
	}
	_, i, err := s.session(ctx, p, string(made.ID))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CreateSessionResponse{Session: s.sessionOf(st.Tenant, i), Channel: c}), nil
}

// ConnectSession signs a statement about the node's channel. What the client may do with the session
// is decided there, by its key.
func (s *Service) ConnectSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectSessionRequest]) (
	*connect.Response[v1.ConnectSessionResponse], error) {
	p, q := r.Msg.Principal, r.Msg.Request
	var asked proto.Message = q
	if r.Msg.Create != nil { // repeated: its session is named by the ID
		asked = r.Msg.Create
	}
	if _, err := s.caller(ctx, p, asked, q.Client); err != nil {
		return nil, err
	}
	st, i, err := s.named(ctx, p, q.Session, r.Msg.SessionId)
	if err != nil {
		return nil, err
	}
	client, caller, err := s.client(p, q.Client, "")
	if err != nil {
		return nil, err
	}
	if err := admit(ctx, st, i.ID, caller, q.Client.GetGrant()); err != nil {
		return nil, err
	}
	c, err := s.attestNode(ctx, client)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectSessionResponse{Session: s.sessionOf(st.Tenant, i), Channel: c}), nil
}

// ConnectNode signs a statement about the node's channel.
func (s *Service) ConnectNode(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectNodeRequest]) (
	*connect.Response[v1.ConnectNodeResponse], error) {
	q := r.Msg.Request
	if q.Node != "" && q.Node != s.o.Node.Name() {
		return nil, missing(kindNode, q.Node)
	}
	if _, err := s.caller(ctx, r.Msg.Principal, q, q.Client); err != nil {
		return nil, err
	}
	client, _, err := s.client(r.Msg.Principal, q.Client, "")
	if err != nil {
		return nil, err
	}
	c, err := s.attestNode(ctx, client)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectNodeResponse{Node: s.o.Node.Name(), Channel: c}), nil
}

// RenameSession gives a session another name.
func (s *Service) RenameSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceRenameSessionRequest]) (
	*connect.Response[v1.RenameSessionResponse], error) {
	p, q := r.Msg.Principal, r.Msg.Request
	who, err := s.caller(ctx, p, q, q.Client)
	if err != nil {
		return nil, err
	}
	st, i, err := s.named(ctx, p, q.Session, r.Msg.SessionId)
	if err == nil && !who.admin(auth.SessionsAdmin) {
		err = who.maySession("session.rename", st, i.Session, owners.Own)
	}
	if err != nil {
		return nil, err
	}
	if i.Session, err = st.Executor.Rename(ctx, string(i.ID), q.NewName); err != nil {
		return nil, hide(err, kindSession, q.Session)
	}
	s.attach(st)
	s.lookSessions(ctx, st, true)
	return connect.NewResponse(&v1.RenameSessionResponse{Session: s.sessionOf(st.Tenant, i)}), nil
}

// DeleteSession removes a session with its turns.
func (s *Service) DeleteSession(ctx context.Context,
	r *connect.Request[v1.NodeServiceDeleteSessionRequest]) (
	*connect.Response[v1.DeleteSessionResponse], error) {
	p, q := r.Msg.Principal, r.Msg.Request
	who, err := s.caller(ctx, p, q, q.Client)
	if err != nil {
		return nil, err
	}
	st, i, err := s.named(ctx, p, q.Session, r.Msg.SessionId)
	if err == nil && !who.admin(auth.SessionsAdmin) {
		err = who.maySession("session.delete", st, i.Session, owners.Own)
	}
	if err != nil {
		return nil, err
	}
	if _, err := st.Executor.RemoveSession(ctx, string(i.ID)); err != nil {
		return nil, hide(err, kindSession, q.Session)
	}
	if err := st.Owners.Forget(i.ID); err != nil {
		return nil, err
	}
	s.attach(st)
	s.lookSessions(ctx, st, true)
	return connect.NewResponse(&v1.DeleteSessionResponse{}), nil
}
