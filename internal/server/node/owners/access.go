package owners

import (
	"cmp"
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/session"
)

// Limit returns a context whose operations on the executor's sessions are those of the caller: each
// session that they name has to be the caller's, for what the operation needs, and each session that
// they make becomes the caller's.
func (s *Store) Limit(ctx context.Context, c Caller, need Need) context.Context {
	if c.Operator {
		return ctx
	}
	return session.WithAccess(ctx, &access{s, c, need})
}

type access struct {
	store  *Store
	caller Caller
	need   Need
}

// May implements session.Access.
func (a *access) May(_ context.Context, s turnstone.Session) error {
	if err := a.store.May(s.ID, a.caller, a.need); err != nil || a.caller.Tokens == nil {
		return err
	}
	return a.caller.Tokens.AllowSession(nameOf(s))
}

// nameOf is a session for the patterns of tokens: its name, or the ID of one that has none.
func nameOf(s turnstone.Session) string { return cmp.Or(s.Name, string(s.ID)) }

// Made implements session.Access.
func (a *access) Made(ctx context.Context, s turnstone.Session) error {
	if a.caller.Tokens != nil {
		if err := a.caller.Tokens.AllowSession(nameOf(s)); err != nil {
			return err
		}
	}
	return a.store.Claim(ctx, s.ID, a.caller)
}

// Owner implements session.Access: homes belong to a client's key.
func (a *access) Owner() string { return a.caller.Key.String() }
