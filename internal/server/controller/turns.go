package controller

import (
	"context"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/guard"
	"turnstone.dev/turnstone/internal/server/controller/guide"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/controller/placing"
	"turnstone.dev/turnstone/internal/server/controller/quota"
	"turnstone.dev/turnstone/internal/server/records"
)

// A turnService serves TurnService.
type turnService struct{ *Controller }

// StartTurn implements turnstonev1connect.TurnServiceHandler.
func (c turnService) StartTurn(ctx context.Context, r *connect.Request[v1.StartTurnRequest]) (
	*connect.Response[v1.StartTurnResponse], error) {
	const op, scope = "turn.start", auth.TurnsRun
	p, m := guard.Caller(ctx), r.Msg
	ask := auth.Request{Scope: scope, Session: m.Session, Template: m.Template}
	if ask.Template == "" {
		ask.Template = c.o.Template
	}
	switch {
	case m.Session == "":
		ask.Session = anonymous
	case records.IsSessionID(m.Session):
		ask.Session = "" // inPlace checks it by its name
	}
	if err := p.Allow(ask); err != nil {
		return nil, err
	}
	answer := &v1.StartTurnResponse{}
	machine := c.nodes.planned(m.Machine, ask.Template)
	need := placing.Need{Machine: orEmpty(m.Machine), Template: ask.Template, Store: true, Avoid: m.AvoidNodes}
	err := c.create(ctx, p, creation{op: op, key: keyOf(p, "StartTurn", m),
		want: quota.Want{Turn: true, Each: machine, Stores: true},
		plan: func(ctx context.Context) ([]records.Object, error) {
			in, err := c.inPlace(ctx, op, p, scope, m.Session)
			if err != nil {
				return nil, err
			}
			room, err := c.guide.Room(need, in.node)
			return []records.Object{{Kind: records.Turn, ID: newID("tk_"), Tenant: p.Tenant,
				Owner: p.Subject, Node: room.Node, Session: in.name, Template: ask.Template,
				Labels: machineLabels(machine)}}, err
		},
		make: func(ctx context.Context, made []records.Object) (err error) {
			made[0], err = c.guide.Call(ctx, made[0], need, func(o records.Object, node guide.Node) error {
				answer, err = c.reserve(ctx, p, m, o, node)
				return err
			})
			return err
		},
		again: func(ctx context.Context, made []records.Object) error {
			names, err := c.sessionNames(ctx, p.Tenant, made[0].Session)
			if err != nil {
				return err
			}
			x := message.Seen{Object: made[0], SessionName: names[made[0].Session]}
			answer.Turn, answer.Channel, err = c.connectTurn(ctx, p, x,
				&v1.NodeServiceConnectTurnRequest{Start: m,
					Request: &v1.ConnectTurnRequest{TicketId: x.ID, Client: m.Client}})
			return err
		}})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(answer), nil
}

// machineLabels are the labels of a turn's machine.
func machineLabels(m turnstone.Machine) map[string]string {
	return map[string]string{message.LabelCPUs: strconv.Itoa(m.CPUs),
		message.LabelMemory: strconv.FormatInt(int64(m.Memory), 10),
		message.LabelDisk:   strconv.FormatInt(int64(m.Disk), 10)}
}

// reserve asks the node for a ticket that has a record. The node's report completes the record.
func (c *Controller) reserve(ctx context.Context, p auth.Principal, m *v1.StartTurnRequest,
	o records.Object, client guide.Node) (*v1.StartTurnResponse, error) {
	session := ""
	if records.IsSessionID(o.Session) {
		session = o.Session
	}
	ctx, end := c.call(ctx)
	defer end()
	answer, err := client.ReserveTurn(ctx, connect.NewRequest(&v1.NodeServiceReserveTurnRequest{
		Principal: message.Principal(p), Request: m, TicketId: o.ID, SessionId: session}))
	if err != nil {
		return nil, err
	}
	t := answer.Msg.GetTurn()
	if t.GetTicketId() != o.ID {
		return nil, wrong(o.Node)
	}
	t.Node, t.Created = o.Node, message.Timestamp(o.Created)
	return answer.Msg, nil
}

// turn is find for a turn.
func (c *Controller) turn(ctx context.Context, op turnstone.Op, p auth.Principal, id string) (
	message.Seen, error) {
	return c.find(ctx, op, p, records.Turn, id)
}

// GetTurn implements turnstonev1connect.TurnServiceHandler.
func (c turnService) GetTurn(ctx context.Context, r *connect.Request[v1.GetTurnRequest]) (
	*connect.Response[v1.GetTurnResponse], error) {
	x, err := c.turn(ctx, "turn.get", guard.Caller(ctx), r.Msg.TicketId)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.GetTurnResponse{Turn: message.Turn(x)}), nil
}

// ConnectTurn implements turnstonev1connect.TurnServiceHandler.
func (c turnService) ConnectTurn(ctx context.Context, r *connect.Request[v1.ConnectTurnRequest]) (
	*connect.Response[v1.ConnectTurnResponse], error) {
	p := guard.Caller(ctx)
	x, err := c.turn(ctx, "turn.connect", p, r.Msg.TicketId)
	if err != nil {
		return nil, err
	}
	t, channel, err := c.connectTurn(ctx, p, x,
		&v1.NodeServiceConnectTurnRequest{Request: r.Msg})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.ConnectTurnResponse{Turn: t, Channel: channel}), nil
}

func (c *Controller) connectTurn(ctx context.Context, p auth.Principal, x message.Seen,
	m *v1.NodeServiceConnectTurnRequest) (*v1.Turn, *v1.Channel, error) {
	client, err := c.at(x.Node)
	if err != nil {
		return nil, nil, err
	}
	ctx, end := c.call(ctx)
	defer end()
	m.Principal = message.Principal(p)
	answer, err := client.ConnectTurn(ctx, connect.NewRequest(m))
	if err != nil {
		return nil, nil, asked(err)
	}
	return message.Turn(x), answer.Msg.Channel, nil
}

// CancelTurn implements turnstonev1connect.TurnServiceHandler.
func (c turnService) CancelTurn(ctx context.Context, r *connect.Request[v1.CancelTurnRequest]) (
	*connect.Response[v1.CancelTurnResponse], error) {
	p := guard.Caller(ctx)
	x, err := c.turn(ctx, "turn.cancel", p, r.Msg.TicketId)
	if err != nil {
		return nil, err
	}
	if x.State.Final() {
		return connect.NewResponse(&v1.CancelTurnResponse{Turn: message.Turn(x)}), nil
	}
	var answer *connect.Response[v1.CancelTurnResponse]
	err = c.guide.Ask(ctx, x.Object, func(n guide.Node) (err error) {
		ask, end := c.call(ctx)
		defer end()
		answer, err = n.CancelTurn(ask, connect.NewRequest(&v1.NodeServiceCancelTurnRequest{
			Principal: message.Principal(p), Request: r.Msg}))
		return err
	})
	if err != nil {
		return nil, asked(err)
	}
	told := message.OfTurn(x.Tenant, answer.Msg.GetTurn())
	if told.ID != x.ID || !told.Valid() {
		return nil, wrong(x.Node)
	}
	ctx, end := system(ctx)
	defer end()
	if _, err := c.apply(ctx, x.Node, []message.Report{told}); err != nil {
		return nil, err
	}
	after, err := c.turn(ctx, "turn.cancel", p, x.ID)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.CancelTurnResponse{Turn: message.Turn(after)}), nil
}

func (c *Controller) turnQuery(ctx context.Context, p auth.Principal, f *v1.TurnFilter) (query,
	error) {
	q := query{filter: records.Filter{Kind: records.Turn, IDs: f.GetTicketIds(),
		Since: message.Instant(f.GetSince()), Until: message.Instant(f.GetUntil())}}
	if f.GetSince() != nil && !f.Since.IsValid() || f.GetUntil() != nil && !f.Until.IsValid() {
		return q, badTime("turn.list")
	}
	for _, s := range f.GetStates() {
		q.filter.States = append(q.filter.States, message.TurnStates.ToRecord(s))
	}
	return q, c.inSession(ctx, p.Tenant, f.GetSession(), &q.filter)
}

func badTime(op turnstone.Op) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, "request", "a time is out of range")
}

// ListTurns implements turnstonev1connect.TurnServiceHandler.
func (c turnService) ListTurns(ctx context.Context, r *connect.Request[v1.ListTurnsRequest]) (
	*connect.Response[v1.ListTurnsResponse], error) {
	p := guard.Caller(ctx)
	q, err := c.turnQuery(ctx, p, r.Msg.Filter)
	if err != nil {
		return nil, err
	}
	all, next, err := c.page(ctx, p, q, pageOf(r.Msg.Page))
	if err != nil {
		return nil, err
	}
	answer := &v1.ListTurnsResponse{NextPageToken: next}
	for _, x := range all {
		answer.Turns = append(answer.Turns, message.Turn(x))
	}
	return connect.NewResponse(answer), nil
}

// WatchTurns implements turnstonev1connect.TurnServiceHandler.
func (c turnService) WatchTurns(ctx context.Context, r *connect.Request[v1.WatchTurnsRequest],
	stream *connect.ServerStream[v1.WatchTurnsResponse]) error {
	p := guard.Caller(ctx)
	q, err := c.turnQuery(ctx, p, r.Msg.Filter)
	if err != nil {
		return err
	}
	return c.watch(ctx, p, q, func(e v1.WatchEvent, x *message.Seen) error {
		m := &v1.WatchTurnsResponse{Event: e}
		if x != nil {
			m.Turn = message.Turn(*x)
		}
		return stream.Send(m)
	})
}

// fresh is how old the recorded usage is at most when a caller asks for it.
const fresh = 5 * time.Second

// GetUsage implements turnstonev1connect.TurnServiceHandler.
func (c turnService) GetUsage(ctx context.Context, r *connect.Request[v1.GetUsageRequest]) (
	*connect.Response[v1.GetUsageResponse], error) {
	p, m := guard.Caller(ctx), r.Msg
	if m.Since != nil && !m.Since.IsValid() || m.Until != nil && !m.Until.IsValid() {
		return nil, badTime("usage.get")
	}
	now := time.Now().UTC()
	until := now
	if m.Until != nil {
		until = m.Until.AsTime()
	}
	since := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	if m.Since != nil {
		since = m.Since.AsTime()
	}
	if c.ledger.Stale(now, fresh) {
		if err := c.flushUsage(ctx); err != nil {
			return nil, err
		}
	}
	session := ""
	if m.Session != "" {
		s, err := c.existing(ctx, "usage.get", p, auth.UsageRead, m.Session)
		if err != nil {
			return nil, err
		}
		session = s.ID
	}
	total, err := c.o.Records.Usage(ctx, p.Tenant, session, since, until)
	if err != nil {
		return nil, err
	}
	s := c.ledger.Standing(p.Tenant)
	return connect.NewResponse(&v1.GetUsageResponse{Since: message.Timestamp(since),
		Until: message.Timestamp(until),
		Turns: uint64(total.Turns), Sandboxes: uint64(total.Sandboxes),
		CpuTime:          &durationpb.Duration{Seconds: total.CPUSeconds},
		MemoryMibSeconds: uint64(total.MemorySeconds), ActiveSandboxes: s.Sandboxes,
		ActiveTurns: s.Turns, StoredBytes: s.Stored,
		SandboxTime: &durationpb.Duration{Seconds: total.SandboxSeconds},
		TurnTime:    &durationpb.Duration{Seconds: total.TurnSeconds},
		Used: &v1.Used{Cpu: durationpb.New(time.Duration(total.Used.CPU)),
			BytesIn: uint64(total.Used.Received), BytesOut: uint64(total.Used.Sent)}}), nil
}
