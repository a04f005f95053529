package sessions

import (
	"context"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/wire"
)

// A Sealer is the part of an Executor for sealed sessions and the keys of clients.
type Sealer interface {
	SealSessions(ctx context.Context, namesOrIDs []string) (*turnstone.SealReport, error)
	ShredSession(ctx context.Context, nameOrID string) (turnstone.Session, error)
	TakeKey(key []byte) (name string, err error)
	WithKey(ctx context.Context, name string) (context.Context, error)
}

// unlocked is the key that the client of a connection has sent.
type unlocked struct {
	x Sealer

	mu   sync.Mutex
	name string // empty: none
}

// use returns a context that has the client's key, which stays until ctx ends. Without a key, or if
// the node has forgotten it, it is ctx: what needs the key then fails, and says so.
func (u *unlocked) use(ctx context.Context) context.Context {
	u.mu.Lock()
	name := u.name
	u.mu.Unlock()
	if name == "" {
		return ctx
	}
	with, err := u.x.WithKey(ctx, name)
	if err != nil {
		return ctx
	}
	return with
}

// Unlock implements wire.SessionServer. The key stays as long as the connection does, at least.
func (v *served) Unlock(_ context.Context, c *wire.Conn, p *wire.SessionUnlockParams) error {
	defer clear(p.Key)
	name, err := v.x.TakeKey(p.Key)
	if err != nil {
		return err
	}
	v.key.mu.Lock()
	defer v.key.mu.Unlock()
	switch v.key.name {
	case name:
		return nil
	case "":
	default:
		return invalid("the client's key", "is another one than this connection has sent before")
	}
	if _, err := v.x.WithKey(c.Context(), name); err != nil {
		return err
	}
	v.key.name = name
	return nil
}

// Seal implements wire.SessionServer. Only the sessions' owner may seal them.
func (v *served) Seal(ctx context.Context, c *wire.Conn, p *wire.SessionSealParams) error {
	return report(ctx, v, c, p.Report, owners.Own, heavy,
		func(ctx context.Context) (*turnstone.SealReport, error) {
			return v.x.SealSessions(ctx, p.Sessions)
		})
}
