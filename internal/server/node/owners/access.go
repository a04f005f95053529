package owners

import (
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
func (a *access) May(_ context.Context, s turnstone.SessionID) error {
	return a.store.May(s, a.caller, a.need)
}

// Made implements session.Access.
func (a *access) Made(ctx context.Context, s turnstone.SessionID) error {
	return a.store.Claim(ctx, s, a.caller)
}
