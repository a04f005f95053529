package kept

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/server/node/owners"
	"turnstone.dev/turnstone/sandboxes"
)

// Works are the sandboxes of a tenant whose work clients of a channel may keep as turns. It
// implements sessions.Sandboxes.
type Works struct {
	Store *sandboxes.Store
	Dir   string // of the files of sandboxes
}

// Of implements sessions.Sandboxes.
func (w Works) Of(id turnstone.SandboxID, c owners.Caller) (turnstone.SessionID, error) {
	none := turnstone.Errorf("sandbox.find", turnstone.KindNotFound, "the sandbox", "does not exist")
	i, err := w.Store.Get(id)
	if err != nil {
		return "", none
	}
	rec, err := Load(w.Dir, id)
	if err != nil {
		return "", err
	}
	// a sandbox of a local command is the operator's
	if !c.Operator && (rec == nil || rec.May(c.Key, time.Now()) != nil) {
		return "", none
	}
	if i.Session == nil {
		return "", nil
	}
	return i.Session.ID, nil
}

// Commit implements sessions.Sandboxes.
func (w Works) Commit(ctx context.Context, id turnstone.SandboxID) (*turnstone.TurnReport, error) {
	return w.Store.Commit(ctx, id)
}

// Discard implements sessions.Sandboxes.
func (w Works) Discard(ctx context.Context, id turnstone.SandboxID) error {
	return w.Store.Discard(ctx, id)
}
