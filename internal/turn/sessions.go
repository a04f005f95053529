package turn

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/bundle"
	"turnstone.dev/turnstone/internal/template"
)

// Repo returns what is kept between turns.
func (x *Runner) Repo() *repo.Repo { return x.repo }

// Close closes the context store, if it was opened. Turns that still run through x count as
// interrupted.
func (x *Runner) Close() error { return x.repo.Close() }

// RemoveSession removes a session, and ends its paused machines. GC frees the space that its turns
// take up.
func (x *Runner) RemoveSession(ctx context.Context, nameOrID string) (turnstone.Session, error) {
	s, err := x.repo.RemoveSession(ctx, nameOrID)
	if err != nil {
		return s, err
	}
	return s, x.endPaused(ctx, s.ID, "")
}

// RemoveBranch removes a branch of a session, and ends its paused machine. Its turns stay until GC
// removes them.
func (x *Runner) RemoveBranch(ctx context.Context, nameOrID, branch string) error {
	s, err := x.repo.RemoveBranch(ctx, nameOrID, branch)
	if err != nil {
		return err
	}
	return x.endPaused(ctx, s.ID, branch)
}

// Templates returns the templates, with what builds their layers.
func (x *Runner) Templates() *template.Store { return x.store }

// Bundles returns what exports and imports sessions. It imports nothing while the disk is nearly
// full.
func (x *Runner) Bundles() bundle.Host {
	room := func() error {
		c, err := x.config()
		if err != nil {
			return err
		}
		return diskspace.Room(x.home.Root, c.Limits.FreeSpace)
	}
	return bundle.Host{Repo: x.repo, Templates: x.store, Room: room}
}
