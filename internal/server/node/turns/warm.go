package turns

import (
	"context"

	"turnstone.dev/turnstone/internal/ahead"
)

// The machines of a node that wait for the next turns of sessions.
type (
	Warm        = ahead.Shelf
	WarmOptions = ahead.Options
	WarmStats   = ahead.Stats
)

// NewWarm returns an empty shelf: see ahead.New.
func NewWarm(o WarmOptions) *Warm { return ahead.New(o) }

// Ahead lets machines of the tenant's sessions wait on a shelf, for turns of the client whose turn has
// ended. It is called after Share, before the first turn.
func (s *Service) Ahead(w *Warm) { s.warm = w }

// warmed returns the context of a turn of t's client, which may use and leave machines that wait.
func (s *Service) warmed(ctx context.Context, t Ticket) context.Context {
	return ahead.NewContext(ctx, s.warm.For(s.tenant, t.Client.String()))
}
