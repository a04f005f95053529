package repo

import "context"

// Prepare creates the images that a turn on the turn that ref names will start from, in advance. It
// is for the background, after a turn; concurrent calls are harmless.
func (x *Repo) Prepare(ctx context.Context, ref string) error {
	cs, err := x.Open(ctx)
	if err != nil {
		return err
	}
	cs, t, err := cs.Resolve(ctx, ref)
	if err != nil || t.State == "" {
		return err
	}
	state, err := cs.State(ctx, t.State)
	if err != nil {
		return err
	}
	tmpl, err := x.templates.Ensure(ctx, state.Image, func(string) {})
	if err != nil {
		return err
	}
	base, err := cs.RootTree(ctx, tmpl)
	if err != nil {
		return err
	}
	return cs.Images.Flatten(ctx, base, cs.History(ctx, &t, tmpl.Layers))
}
