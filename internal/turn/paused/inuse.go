package paused

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/sandboxes"
)

// NoneRuns returns an error of kind Unavailable if a sandbox runs, or is being created, that has data
// of the session: files and outputs outside of the store, or the machine of one of its turns. The
// machines that wait for the session's next turns do not count. A session that does not exist has
// none.
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
		if i.State.Final() || !hasDataOf(ctx, cs, i, s.ID) || waits(h, s.ID, i.ID) {
			continue
		}
		return turnstone.Errorf(op, turnstone.KindUnavailable, s.Label(), "its sandbox %s (%s) runs",
			i.Title(), i.ID).WithHint("end it: turn sandbox rm " + string(i.ID) +
			", with --discard if its work is not wanted")
	}
	return nil
}

func hasDataOf(ctx context.Context, cs *repo.ContextStore, i sandboxes.Info,
	s turnstone.SessionID) bool {
	if i.Session != nil && i.Session.ID != "" {
		return i.Session.ID == s
	}
	if i.DataOf == "" {
		return false
	}
	of, err := cs.DB.Find(ctx, i.DataOf)
	return err == nil && of.ID == s
}
