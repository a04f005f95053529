package main

import "turnstone.dev/turnstone/internal/cli"

// prepareCmd is for turn itself: it creates the images from which the next turn of a session
// starts, while its user reads the receipt.
type prepareCmd struct {
	Home string `hidden:"" required:""`
	Ref  string `arg:""`
}

// Run creates the images.
func (c *prepareCmd) Run(a *cli.App) error {
	a.Env.Dir = c.Home
	ctx, stop := cli.Interruptible(func(string) {}, cli.ExitAborted)
	defer stop()
	x, err := a.OpenLocal(ctx)
	if err != nil {
		return err
	}
	return x.Prepare(ctx, c.Ref)
}
