package executor

import "context"

// Prepare makes the images that a turn on top of the one that ref names will start
// from, so that it need not. It is for the background, after a turn; several at
// one time do no harm.
func (x *Repo) Prepare(ctx context.Context, ref string) error {
	cs, err := x.context(ctx)
	if err != nil {
		return err
	}
	t, err := cs.db.Resolve(ctx, ref)
	if err != nil || t.State == "" {
		return err
	}
	at := &branchPoint{cs: cs, parent: &t}
	if at.state, err = cs.state(ctx, t.State); err != nil {
		return err
	}
	tmpl, err := x.templates().Ensure(ctx, at.state.Image, func(string) {})
	if err != nil {
		return err
	}
	at.layers = tmpl.Layers
	base, err := cs.rootTree(ctx, x, tmpl)
	if err != nil {
		return err
	}
	return cs.images.Flatten(ctx, base, at.history(ctx))
}
