package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// A TurnStart is what the server learns of a turn before it runs. Zero fields are not said.
type TurnStart struct {
	// Key is the idempotency key: the same key starts one turn, however often it is said. Empty: a
	// new one, so that repetitions of this call are safe.
	Key      string
	Session  string // name or ID; empty: an anonymous one
	Template string // name of the template, or the image
	Timeout  time.Duration
	CPUs     int
	Memory   turnstone.Bytes
	Disk     turnstone.Bytes
}

// startTries bounds the tickets that one call asks for, when nodes are restarted.
const startTries = 5

// A StartedTurn is a turn that a server reserved for this client.
type StartedTurn struct {
	Ticket string
	Node   string // its name

	server *Server
	mu     sync.Mutex
	first  *offer // of the answer, for the first connection
}

// StartTurn reserves a turn, which begins when its document arrives: see Turns.Run.
func (s *Server) StartTurn(ctx context.Context, t TurnStart) (*StartedTurn, error) {
	client, nonce := s.asker()
	r := &v1.StartTurnRequest{IdempotencyKey: cmp.Or(t.Key, rand.Text()), Session: t.Session,
		Template: t.Template, Client: client}
	if t.CPUs > 0 || t.Memory > 0 || t.Disk > 0 {
		r.Machine = &v1.Machine{Cpus: uint32(max(t.CPUs, 0)), Memory: uint64(max(t.Memory, 0)),
			Disk: uint64(max(t.Disk, 0))}
	}
	if t.Timeout > 0 {
		r.Timeout = durationpb.New(max(t.Timeout, time.Second))
	}
	a, err := s.Turns.StartTurn(ctx, connect.NewRequest(r))
	for n := 1; n < startTries && t.Key == "" && api.CodeOf(err) == connect.CodeFailedPrecondition &&
		turnstone.KindOf(err) == turnstone.KindDead; n++ {
		// the node was restarted before the turn began, and has forgotten the ticket
		r.IdempotencyKey = rand.Text()
		a, err = s.Turns.StartTurn(ctx, connect.NewRequest(r))
	}
	if err != nil {
		return nil, err
	}
	turn := a.Msg.GetTurn()
	o := nodeOffer(a.Msg.Channel, turn.GetNode(), nonce)
	return &StartedTurn{Ticket: turn.GetTicketId(), Node: turn.GetNode(), server: s, first: &o}, nil
}

// Reattach returns a turn that was started earlier by this client's key.
func (s *Server) Reattach(ticket string) *StartedTurn {
	return &StartedTurn{Ticket: ticket, server: s}
}

// Dial opens a channel to the turn's node: it is a Dialer. Each connection has a statement of its
// own.
func (t *StartedTurn) Dial(ctx context.Context) (io.ReadWriteCloser, error) {
	t.mu.Lock()
	o := t.first
	t.first = nil
	t.mu.Unlock()
	if o != nil {
		return t.server.open(ctx, *o)
	}
	client, nonce := t.server.asker()
	a, err := t.server.Turns.ConnectTurn(ctx, connect.NewRequest(&v1.ConnectTurnRequest{
		TicketId: t.Ticket, Client: client}))
	if err != nil {
		return nil, err
	}
	// A turn whose node was lost is at another one, which this client has to trust too.
	t.mu.Lock()
	t.Node = cmp.Or(a.Msg.GetTurn().GetNode(), t.Node)
	node := t.Node
	t.mu.Unlock()
	return t.server.open(ctx, nodeOffer(a.Msg.Channel, node, nonce))
}

// At returns the name of the node of the latest connection.
func (t *StartedTurn) At() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Node
}

// Cancel ends the turn by a control call, for a client without a channel to it.
func (t *StartedTurn) Cancel(ctx context.Context) error {
	_, err := t.server.Turns.CancelTurn(ctx, connect.NewRequest(&v1.CancelTurnRequest{
		TicketId: t.Ticket}))
	return err
}
