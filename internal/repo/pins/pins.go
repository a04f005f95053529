// Package pins keeps the trees of a machine's templates, which no turn may name yet, from the sweeps of
// other machines that have the same objects.
package pins

import (
	"context"
	"errors"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/location"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/template"
)

// HasLayer reports whether the store has the tree of a template's layer. If other machines have the
// same objects, all of it, which their sweeps keep from then on.
func HasLayer(ctx context.Context, x *repo.Repo, l turnstone.TemplateLayer) (bool, error) {
	cs, err := x.Open(ctx)
	if err != nil {
		return false, err
	}
	has, err := cs.Store.Has(ctx, l.Tree.Root)
	if err != nil || !has || !cs.DB.Shared() {
		return has, err
	}
	machine, err := location.ID(x.Dir)
	if err != nil {
		return false, err
	}
	if is, err := cs.DB.Sweeps().Pinned(ctx, machine, l.Tree); err != nil || is {
		return is, err
	}
	batch, err := cs.Store.Begin(ctx) // no object that it finds is deleted before it is closed
	if err != nil {
		return false, err
	}
	defer func() { _ = batch.Close() }()
	if has, err = whole(ctx, cs, batch, l); err != nil || !has {
		return false, err
	}
	return true, cs.DB.Pin(ctx, machine, l.Tree)
}

// Unpin removes the pins of layers that this machine no longer has: nobody pins one meanwhile.
func Unpin(ctx context.Context, x *repo.Repo) error {
	cs, err := x.Open(ctx)
	if err != nil || !cs.DB.Shared() {
		return err
	}
	machine, err := location.ID(x.Dir)
	if err != nil {
		return err
	}
	return cs.Store.Exclusive(ctx, func() error {
		layers, err := template.NewStore(x.Dir.Path("templates")).BuiltLayers()
		if err != nil {
			return err
		}
		var trees []turnstone.TreeRef
		for _, l := range layers {
			trees = append(trees, l.Tree)
		}
		return cs.DB.Sweeps().Unpin(ctx, machine, trees)
	})
}

// errPart is the end of a traversal that found a part missing.
var errPart = errors.New("a part is missing")

// whole reports whether the batch has all of a layer, except what the images of templates have.
func whole(ctx context.Context, cs *repo.ContextStore, batch *store.Batch,
	l turnstone.TemplateLayer) (bool, error) {
	seen := repo.Seen{}
	stored := func(d turnstone.Digest) error {
		is, err := batch.Stored(ctx, d)
		if err == nil && !is {
			err = errPart
		}
		return err
	}
	var failed error
	r := &repo.Reach{In: cs, Failed: func(_ string, err error) error { return err }}
	r.Object = func(d turnstone.Digest) bool {
		if failed != nil || !seen.First(d) {
			return false
		}
		failed = stored(d)
		return failed == nil
	}
	r.Content = func(ctx context.Context, c turnstone.Content) error {
		objects, err := cs.Store.ContentObjects(ctx, c)
		for _, d := range objects {
			if err == nil && seen.First(d) {
				err = stored(d)
			}
		}
		return err
	}
	err := r.Tree(ctx, "template "+l.Spec.Short(), l.Tree)
	if err = errors.Join(err, failed); errors.Is(err, errPart) ||
		turnstone.KindOf(err) == turnstone.KindNotFound {
		return false, nil
	}
	return err == nil, err
}
