package control

import (
	"cmp"
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/internal/server/node/tenants"
	"turnstone.dev/turnstone/internal/server/node/turns"
)

// ticketTime is the time in which a turn is started after its reservation.
const ticketTime = 15 * time.Minute

// ReserveTurn writes a ticket. The same ticket with the same request answers the same turn.
func (s *Service) ReserveTurn(ctx context.Context,
	r *connect.Request[v1.NodeServiceReserveTurnRequest]) (
	*connect.Response[v1.StartTurnResponse], error) {
	p, q, id := r.Msg.Principal, r.Msg.Request, r.Msg.TicketId
	who, err := s.caller(ctx, p, q, q.Client)
	if err != nil {
		return nil, err
	}
	client, _, err := s.client(p, q.Client, "")
	if err != nil {
		return nil, err
	}
	st, err := s.o.Tenants.Of(ctx, p.Tenant)
	if err != nil {
		return nil, exhausted(err)
	}
	s.attach(st)
	session := turnstone.SessionID(r.Msg.SessionId)
	have, err := st.Turns.Get(id)
	if err == nil && have.SessionID == "" && have.Session != r.Msg.SessionId {
		session = "" // as newTurn found then
	}
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		if session, err = s.newTurn(ctx, st, r.Msg, who); err != nil {
			return nil, err
		}
	}
	t := turns.Ticket{ID: id, Client: client.Key, Session: q.Session,
		SessionID: session, Template: q.Template,
		Machine: toMachine(q.Machine), Most: s.usual(st, q.Template), Timeout: q.Timeout.AsDuration(),
		Expires: time.Now().Add(ticketTime), Trail: turns.Trail(ctx)}
	if err := st.Turns.Reserve(t); err != nil {
		return nil, exhausted(err)
	}
	i, err := st.Turns.Get(id)
	if err != nil {
		return nil, err
	}
	c, err := s.attestNode(ctx, client)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.StartTurnResponse{Turn: s.turnOf(i), Channel: c}), nil
}

// usual returns the machine of a turn that asks for none.
func (s *Service) usual(st *tenants.State, template string) turnstone.Machine {
	shape := st.Executor.Shape(template)
	return turnstone.Machine{CPUs: shape.CPUs, Memory: shape.Memory, Disk: shape.Disk}
}

// turnRoom is the turns.Room of the node.
func (s *Service) turnRoom(_ string, t turns.Ticket) (free func(), err error) {
	m := t.Machine.Over(t.Most)
	done, err := s.take(m, t.ID)
	if err != nil {
		return nil, err
	}
	s.roomMu.Lock()
	s.turns[t.ID] = m
	s.roomMu.Unlock()
	done()
	return func() {
		s.roomMu.Lock()
		defer s.roomMu.Unlock()
		delete(s.turns, t.ID)
	}, nil
}

// newTurn checks what a new ticket needs: room, and a session that the client may change. It returns
// the session's ID; empty: there is none yet.
func (s *Service) newTurn(ctx context.Context, st *tenants.State,
	r *v1.NodeServiceReserveTurnRequest, who caller) (none turnstone.SessionID, err error) {
	if err := st.Room(); err != nil {
		return none, exhausted(err)
	}
	free, err := s.take(toMachine(r.Request.Machine).Over(s.usual(st, r.Request.Template)), r.TicketId)
	if err != nil {
		return none, err
	}
	free() // the turn itself takes its place when it starts
	if err := st.Refresh(ctx); err != nil {
		return none, err
	}
	if r.SessionId == "" {
		return none, nil // what exists under the name by then is checked when the turn starts
	}
	id := turnstone.SessionID(r.SessionId)
	g, err := st.Executor.Session(ctx, r.SessionId)
	if turnstone.KindOf(err) == turnstone.KindNotFound && r.Request.Session != r.SessionId {
		// A client has just removed it in its channel, of which the controller learns with this look.
		// The name is free again.
		s.lookSessions(ctx, st, true)
		return none, nil
	}
	if err != nil || !isSession(g.Session, r.Request.Session) {
		return none, hide(cmp.Or(err, missing(kindSession, r.Request.Session)), kindSession,
			r.Request.Session)
	}
	if err := admit(ctx, st, id, who.owns(), r.Request.Client.GetGrant()); err != nil {
		return none, err
	}
	return id, who.maySession("turn.start", st, g.Session, owners.Write)
}

// turn returns a ticket of the principal's tenant.
func (s *Service) turn(p *v1.Principal, id string) (*tenants.State, turns.Info, error) {
	st, err := s.find(p, kindTurn, id)
	if err != nil {
		return nil, turns.Info{}, err
	}
	i, err := st.Turns.Get(id)
	return st, i, hide(err, kindTurn, id)
}

// ConnectTurn signs a statement for the client of a turn, and for no other.
func (s *Service) ConnectTurn(ctx context.Context,
	r *connect.Request[v1.NodeServiceConnectTurnRequest]) (
	*connect.Response[v1.ConnectTurnResponse], error) {
	p, q := r.Msg.Principal, r.Msg.Request
	var made proto.Message = q
	if r.Msg.Start != nil { // repeated: the ticket's client made it
		made = r.Msg.Start
	}
	who, err := s.caller(ctx, p, made, q.Client)
	if err != nil {
		return nil, err
	}
	_, i, err := s.turn(p, q.TicketId)
	if err != nil {
		return nil, err
	}
	if i.Client != who.key {
		return nil, denied("turn.connect", kindTurn, q.TicketId,
			"exists and belongs to another client key", "use the client key that started it")
	}
	client, _, err := s.client(p, q.Client, "")
	if err != nil {
		return nil, err
	}
	c, err := s.attestNode(ctx, client)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectTurnResponse{Turn: s.turnOf(i), Channel: c}), nil
}

// CancelTurn ends a turn. A turn that has ended is not changed.
func (s *Service) CancelTurn(ctx context.Context,
	r *connect.Request[v1.NodeServiceCancelTurnRequest]) (
	*connect.Response[v1.CancelTurnResponse], error) {
	id := r.Msg.Request.TicketId
	who, err := s.caller(ctx, r.Msg.Principal, r.Msg.Request, r.Msg.Request.Client)
	if err != nil {
		return nil, err
	}
	st, i, err := s.turn(r.Msg.Principal, id)
	away := false // at a node that does not answer
	if turnstone.KindOf(err) == turnstone.KindNotFound {
		if st, err = s.find(r.Msg.Principal, kindTurn, id); err == nil {
			i, err = st.Turns.Elsewhere(ctx, id)
			away, err = err == nil, hide(err, kindTurn, id)
		}
	}
	if err != nil {
		return nil, err
	}
	if i.Client != who.key && !who.admin(auth.TurnsAdmin) {
		return nil, who.refuse("turn.cancel", kindTurn, id, auth.TurnsAdmin)
	}
	if away {
		if err := st.Turns.Forbid(id); err != nil {
			return nil, err
		}
		return connect.NewResponse(&v1.CancelTurnResponse{Turn: s.turnOf(i)}), nil
	}
	if err := st.Turns.Cancel(id); err != nil {
		return nil, hide(err, kindTurn, id)
	}
	_, i, err = s.turn(r.Msg.Principal, id)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelTurnResponse{Turn: s.turnOf(i)}), nil
}
