package main

import (
	"os/exec"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
)

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
	x, err := a.Open(ctx)
	if err != nil {
		return err
	}
	return x.Prepare(ctx, c.Ref)
}

// prepareNext starts prepareCmd in a separate process session. If it fails, the next turn does its
// work.
func prepareNext(a *cli.App, turn *turnstone.TurnReport) {
	dir, err := a.Locate()
	if err != nil || turn.State == "" || a.Env.Background == "off" {
		return
	}
	cmd := exec.Command("/proc/self/exe", "prepare-next", "--home", dir, string(turn.ID))
	cmd.Args[0] = "turn"
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.Start() == nil {
		_ = cmd.Process.Release()
	}
}
