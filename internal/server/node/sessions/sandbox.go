package sessions

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/wire"
)

// Sandboxes are the sandboxes of the tenant.
type Sandboxes interface {
	// Of returns the session of a sandbox that the caller's key may open; empty: none. The error is
	// of kind NotFound for other sandboxes.
	Of(id turnstone.SandboxID, c owners.Caller) (turnstone.SessionID, error)
	Commit(ctx context.Context, id turnstone.SandboxID) (*turnstone.TurnReport, error)
	Discard(ctx context.Context, id turnstone.SandboxID) error
}

// ServeSandboxes lets clients keep the work of the sandboxes of x as turns.
func (s *Service) ServeSandboxes(x Sandboxes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes = x
}

func (s *Service) sandboxes() Sandboxes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes
}

// sandbox returns the ID of a sandbox whose work the client may keep or throw away.
func (v *served) sandbox(ctx context.Context, ref string) (turnstone.SandboxID, error) {
	id := turnstone.SandboxID(ref)
	none := turnstone.Errorf("sandbox.find", turnstone.KindNotFound, "the sandbox", "no such sandbox")
	if v.sandboxes() == nil {
		return id, none
	}
	session, err := v.sandboxes().Of(id, v.caller)
	if err == nil && session != "" {
		// by its name too: the client's tokens narrow what its key may
		_, err = v.x.CurrentSession(v.o.Owners.Limit(ctx, v.caller, owners.Write), string(session))
	}
	if turnstone.KindOf(err) == turnstone.KindNotFound { // and nothing of its session
		err = none
	}
	return id, err
}

func (v *served) CommitSandbox(ctx context.Context, c *wire.Conn,
	p *wire.SessionCommitSandboxParams) error {
	id, err := v.sandbox(ctx, p.Sandbox)
	if err != nil {
		return err
	}
	return report(ctx, v, c, p.Report, owners.Write, heavy,
		func(ctx context.Context) (*turnstone.TurnReport, error) {
			return v.sandboxes().Commit(ctx, id)
		})
}

func (v *served) DiscardSandbox(ctx context.Context, _ *wire.Conn,
	p *wire.SessionDiscardSandboxParams) error {
	id, err := v.sandbox(ctx, p.Sandbox)
	if err != nil {
		return err
	}
	return v.do(ctx, owners.Write, light, func(ctx context.Context) error {
		return v.sandboxes().Discard(ctx, id)
	})
}
