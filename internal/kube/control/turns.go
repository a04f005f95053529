package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/turns"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/wire"
)

// tickets bounds the tickets of one order: each was reserved, and expired before its turn began.
const tickets = 100

// Reserve implements turns.Server.
func (c *Client) Reserve(ctx context.Context, namespace string, o turns.Order) (string, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return "", err
	}
	for n := range tickets {
		started, err := t.server.StartTurn(ctx, remote.TurnStart{Key: fmt.Sprintf("%s.%d", c.once("turn", o.Key), n),
			Session: o.Session, Template: o.Image, Timeout: o.Timeout, CPUs: o.CPUs, Memory: o.Memory,
			Disk: o.Disk})
		if err != nil {
			return "", err
		}
		state, err := t.state(ctx, started.Ticket)
		if err != nil || state != v1.TurnState_TURN_STATE_EXPIRED {
			return started.Ticket, err
		}
	}
	return "", turnstone.Errorf("kube.reserve", turnstone.KindExhausted, "the turn",
		"was reserved %d times, and never began", tickets)
}

// state returns the state of a ticket.
func (t *tenant) state(ctx context.Context, ticket string) (v1.TurnState, error) {
	a, err := t.server.Turns.GetTurn(ctx, connect.NewRequest(&v1.GetTurnRequest{TicketId: ticket}))
	if err != nil {
		return 0, err
	}
	return a.Msg.Turn.GetState(), nil
}

// Follow implements turns.Server.
func (c *Client) Follow(ctx context.Context, namespace, ticket string, o turns.Order) (*turnstone.TurnReport, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, later(err)
	}
	state, err := t.state(ctx, ticket)
	switch {
	case turnstone.KindOf(err) == turnstone.KindNotFound: // it may have run, long ago
		return nil, err
	case err != nil:
		return nil, later(err)
	case state == v1.TurnState_TURN_STATE_EXPIRED:
		return nil, &turns.NotStarted{Err: turns.ErrExpired}
	}
	line := &line{ctx: ctx, started: t.server.Reattach(ticket), renew: func() error { return c.renewed(ctx, t, namespace) }}
	follow := &remote.Turns{Dial: line.dial, Greet: t.server.Unlock}
	detached := context.WithoutCancel(ctx) // the end of ctx would cancel the turn
	report, err := follow.Follow(detached, ticket, anyDocument(), nil)
	var failed *turnstone.Error
	if report == nil && errors.As(err, &failed) && failed.Kind == turnstone.KindDenied && failed.Op == "turn.attach" {
		return nil, later(err) // the operator's token ended, and the turn goes on
	}
	if turnstone.KindOf(err) != turnstone.KindNotFound || report != nil || ctx.Err() != nil {
		return report, err
	}
	text, err := o.Document(ctx)
	if err != nil {
		return nil, &turns.NotStarted{Err: err}
	}
	doc, err := document.Parse("document", text)
	if err != nil {
		return nil, &turns.NotStarted{Err: err}
	}
	// What the document asks of the caller, such as a session or a home, nobody grants here.
	report, err = follow.Run(detached, remote.TurnRequest{Ticket: ticket, Document: doc, Settings: wire.TurnSettings{
		Image: o.Image, Session: o.Session, Branch: o.Branch, Timeout: int64(o.Timeout), CPUs: int64(o.CPUs),
		Memory: int64(o.Memory), Disk: int64(o.Disk)}}, nil)
	if report == nil && err != nil && ctx.Err() == nil && neverRan(err) {
		return nil, &turns.NotStarted{Err: err}
	}
	return report, err
}

// later returns the error of a turn that may run, whose ticket says so at the next try: also for an
// operator whose token has ended.
func later(err error) error {
	return &turns.NotStarted{Err: turnstone.NewError("kube.turn", turnstone.KindUnavailable, "the server", err)}
}

// neverRan reports whether a node refused to start a turn: remote.Turns replaces these kinds once the
// turn may have begun.
func neverRan(err error) bool {
	switch turnstone.KindOf(err) {
	case turnstone.KindNotFound, turnstone.KindInvalid, turnstone.KindExhausted, turnstone.KindUnavailable:
		return true
	}
	return false
}

// anyDocument stands for a document that another process sent: its journal numbers the steps.
func anyDocument() *document.Document {
	d := &document.Document{Steps: make([]*document.Step, document.MaxSteps)}
	for n := range d.Steps {
		d.Steps[n] = &document.Step{Index: n + 1}
	}
	return d
}

// A line opens channels to a turn until ctx ends, which closes them: the turn continues.
type line struct {
	ctx     context.Context
	started *remote.StartedTurn
	renew   func() error
}

func (l *line) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := l.ctx.Err(); err != nil {
		return nil, turnstone.NewError("kube.turn", turnstone.KindCanceled, "the operator", err)
	}
	if err := l.renew(); err != nil {
		return nil, err
	}
	stream, err := l.started.Dial(ctx)
	if err != nil {
		return nil, err
	}
	s := &cut{ReadWriteCloser: stream}
	s.stop = context.AfterFunc(l.ctx, func() { _ = s.Close() })
	return s, nil
}

// A cut is a stream that is closed once, by its user or at the operator's end.
type cut struct {
	io.ReadWriteCloser
	once sync.Once
	stop func() bool
	err  error
}

// Close implements io.Closer.
func (s *cut) Close() error {
	s.once.Do(func() { s.err = s.ReadWriteCloser.Close() })
	return s.err
}

// Cancel implements turns.Server.
func (c *Client) Cancel(ctx context.Context, namespace, ticket string) error {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return err
	}
	return t.server.Reattach(ticket).Cancel(ctx)
}

// maxDocument bounds a document, which is in the operator's memory until its turn has started.
const maxDocument = 16 << 20

// Document implements turns.Server.
func (c *Client) Document(ctx context.Context, namespace string, from v1alpha1.DocumentSource) ([]byte, error) {
	t, err := c.of(ctx, namespace)
	if err != nil {
		return nil, err
	}
	ref, err := t.reference(ctx, from.Ref())
	if err != nil {
		return nil, err
	}
	if from.Path == "" {
		return t.host.Receipt(ctx, ref)
	}
	f, err := t.host.OpenFile(ctx, ref, from.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err == nil && len(b) > maxDocument {
		err = turnstone.Errorf("kube.document", turnstone.KindInvalid, from.Path, "has more than %d bytes",
			maxDocument)
	}
	return b, err
}

// reference returns a turn as the node's commands have it. A turn's ID names a turn of any session, so
// it has to be one of the session that is named.
func (t *tenant) reference(ctx context.Context, r v1alpha1.TurnRef) (string, error) {
	switch {
	case r.Turn == "":
		return r.Session, nil
	case !strings.HasPrefix(r.Turn, "t_"):
		return r.Session + "@" + r.Turn, nil
	}
	info, err := t.host.Show(ctx, r.Turn)
	if err != nil {
		return "", err
	}
	if s := info.Session; s.Name != r.Session && string(s.ID) != r.Session {
		return "", turnstone.Errorf("kube.turn", turnstone.KindNotFound, r.Turn, "is no turn of session %s",
			r.Session)
	}
	return r.Turn, nil
}
