package remote

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/sandboxes"
)

// A WatchedTurn is a turn that runs or was reserved, as the server describes it.
type WatchedTurn struct {
	Ticket  string
	ID      turnstone.TurnID // empty: it does not run yet
	Session string           // its name, or its ID
	Number  int              // in its session; 0: unknown
	Running bool
	Since   time.Time // its start, or its reservation
	Node    string
}

// A Watcher is told of objects until its watch ends.
type Watcher[T any] struct {
	Set    func(id string, one T) // a new object, or a new state of it
	Drop   func(id string)        // the object has ended
	Synced func()                 // what was there at the beginning is known
}

// maxWatched bounds the ID of an object in an answer in bytes.
const maxWatched = 64

// WatchTurns tells w of the turns that have not ended, until ctx or the connection ends. The error
// is never nil.
func (s *Server) WatchTurns(ctx context.Context, w Watcher[WatchedTurn]) error {
	stream, err := s.Turns.WatchTurns(ctx, connect.NewRequest(&v1.WatchTurnsRequest{}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		m, t := stream.Msg(), stream.Msg().GetTurn()
		if m.Event == v1.WatchEvent_WATCH_EVENT_SYNCED {
			w.Synced()
		}
		if t == nil || len(t.TicketId) > maxWatched {
			continue
		}
		x := WatchedTurn{Ticket: short(t.TicketId), ID: turnstone.TurnID(short(t.TurnId)),
			Session: short(t.Session), Number: int(t.Number), Node: short(t.Node),
			Since: t.GetCreated().AsTime()}
		if x.Session == "" {
			x.Session = short(t.SessionId)
		}
		switch t.State {
		case v1.TurnState_TURN_STATE_RUNNING:
			x.Running, x.Since = true, t.GetStarted().AsTime()
		case v1.TurnState_TURN_STATE_RESERVED:
		default:
			w.Drop(x.Ticket)
			continue
		}
		if m.Event == v1.WatchEvent_WATCH_EVENT_DELETED {
			w.Drop(x.Ticket)
		} else {
			w.Set(x.Ticket, x)
		}
	}
	return ended(stream.Err())
}

// Watch tells w of the sandboxes that have not ended, until ctx or the connection ends. The error is
// never nil.
func (b *Sandboxes) Watch(ctx context.Context, w Watcher[sandboxes.Info]) error {
	stream, err := b.calls.WatchSandboxes(ctx, connect.NewRequest(&v1.WatchSandboxesRequest{}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		m, s := stream.Msg(), stream.Msg().GetSandbox()
		if m.Event == v1.WatchEvent_WATCH_EVENT_SYNCED {
			w.Synced()
		}
		if s == nil || len(s.SandboxId) > maxWatched {
			continue
		}
		i := infoOf(s)
		i.ID = turnstone.SandboxID(short(s.SandboxId))
		if m.Event == v1.WatchEvent_WATCH_EVENT_DELETED || i.State.Final() || s.Removed {
			w.Drop(string(i.ID))
		} else {
			w.Set(string(i.ID), i)
		}
	}
	return ended(stream.Err())
}

// ended returns the error of a watch whose stream has ended.
func ended(err error) error {
	if err != nil {
		return err
	}
	return turnstone.Errorf("host.watch", turnstone.KindUnavailable, "the server", "ended the watch").
		WithHint("try again")
}
