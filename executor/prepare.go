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
	state, err := cs.state(ctx, t.State)
	if err != nil {
		return err
	}
	tmpl, err := x.templates().Ensure(ctx, state.Image, func(string) {})
	if err != nil {
		return err
	}
	base, err := cs.rootTree(ctx, tmpl)
	if err != nil {
		return err
	}
	return cs.images.Flatten(ctx, base, cs.history(ctx, &t, tmpl.Layers))
}
