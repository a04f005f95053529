package session

import (
	"context"

	"turnstone.dev/turnstone"
)

// An Access limits the operations of a context to some sessions. It is called by several goroutines.
type Access interface {
	// May returns nil if the session's content may be used. An error of kind NotFound hides the
	// session: it answers as if it did not exist. Of s, the ID and the name are set.
	May(ctx context.Context, s turnstone.Session) error
	// Made is called for each new session, before any other program can see it. With an error the
	// session is not made.
	Made(ctx context.Context, s turnstone.Session) error
	// Owner names whose homes are used; not empty.
	Owner() string
}

type accessKey struct{}

// WithAccess returns a context whose operations use only the sessions that a allows. It holds for
// each reference to a session or a turn, wherever it comes from: it is checked where the database
// finds the session, so that nothing can change between the check and the use.
func WithAccess(ctx context.Context, a Access) context.Context {
	return context.WithValue(ctx, accessKey{}, a)
}

// Limited reports whether WithAccess limits the context: its operations are those of somebody who is
// not this host's user.
func Limited(ctx context.Context) bool { return ctx.Value(accessKey{}) != nil }

// may returns nil if the context may use the session.
func may(ctx context.Context, s turnstone.Session) error {
	if a, ok := ctx.Value(accessKey{}).(Access); ok {
		return a.May(ctx, s)
	}
	return nil
}

// mayByID is may for a session of which only the ID is known.
func mayByID(ctx context.Context, q querier, id turnstone.SessionID) error {
	if !Limited(ctx) {
		return nil
	}
	s, err := oneSession(ctx, q, string(id), "id = ?", id)
	if err != nil {
		return err
	}
	return may(ctx, s)
}

// made tells the context's access of a new session.
func made(ctx context.Context, s turnstone.Session) error {
	if a, ok := ctx.Value(accessKey{}).(Access); ok {
		return a.Made(ctx, s)
	}
	return nil
}

// hidden reports whether err hides a session, as opposed to an access that cannot decide.
func hidden(err error) bool { return turnstone.KindOf(err) == turnstone.KindNotFound }

// visible is find for a session that the context may use. The error for a hidden session is that
// for a missing one.
func (db *DB) visible(ctx context.Context, q querier, ref string) (turnstone.Session, error) {
	s, err := find(ctx, q, ref)
	if err != nil {
		return s, err
	}
	if err := may(ctx, s); hidden(err) {
		return turnstone.Session{}, turnstone.NewError("session.find", turnstone.KindNotFound, ref,
			nil)
	} else if err != nil {
		return turnstone.Session{}, err
	}
	return s, nil
}

// visibleTurn is turn for a turn of a session that the context may use.
func visibleTurn(ctx context.Context, q querier, id turnstone.TurnID) (turnstone.Turn, error) {
	t, err := turn(ctx, q, id)
	if err != nil {
		return t, err
	}
	if err := mayByID(ctx, q, t.Session); hidden(err) {
		return turnstone.Turn{}, unknownTurn(id)
	} else if err != nil {
		return turnstone.Turn{}, err
	}
	return t, nil
}

// notHidden returns the error for a name or an ID that a hidden session has: it cannot be used.
func notHidden(ctx context.Context, s turnstone.Session) error {
	err := may(ctx, s)
	if !hidden(err) {
		return err
	}
	return turnstone.Errorf("session.name", turnstone.KindInvalid, s.Label(),
		"there is already a session with that name, of another client").
		WithHint("choose another name, or let the session's owner admit your key")
}
