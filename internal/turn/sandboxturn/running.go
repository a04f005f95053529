package sandboxturn

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/sandboxes"
)

// NoneRuns returns an error of kind Unavailable if a sandbox of the session runs: it has files and
// outputs of the session outside of the store. A session that does not exist has none.
func NoneRuns(ctx context.Context, h *host.Host, op turnstone.Op, nameOrID string) error {
	cs, err := h.Context(ctx)
	if err != nil {
		return err
	}
	all, err := sandboxes.NewStore(h.Dir.Root).List(ctx)
	if err != nil {
		return err
	}
	s, err := cs.DB.Find(ctx, nameOrID)
	if err != nil {
		return nil // the caller finds the reason
	}
	for _, i := range all {
		if i.State.Final() || i.Session == nil || i.Session.ID != s.ID {
			continue
		}
		return turnstone.Errorf(op, turnstone.KindUnavailable, s.Label(), "its sandbox %s (%s) runs",
			i.Title(), i.ID).WithHint("end it: turn sandbox rm " + string(i.ID) +
			", with --discard if its work is not wanted")
	}
	return nil
}
