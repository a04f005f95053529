package templatebuild

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/pins"
)

// GC is repo.GC that first removes the pins of layers that this machine no longer has, unless nothing
// is to be deleted.
func GC(ctx context.Context, x *repo.Repo, req turnstone.GCRequest) (*turnstone.GCReport, error) {
	if !req.DryRun {
		if err := pins.Unpin(ctx, x); err != nil {
			return nil, err
		}
	}
	return x.GC(ctx, req)
}
