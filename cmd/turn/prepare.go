package main

import (
	"os"
	"os/exec"
	"syscall"

	"turnstone.dev/turnstone/executor"
	"turnstone.dev/turnstone/internal/statedir"
)

// prepareCmd is for turn itself: it makes what the next turn of a session starts
// from, while its user reads the receipt.
type prepareCmd struct {
	Ref string `arg:""`
}

// Run makes the images.
func (c *prepareCmd) Run(*app) error {
	h, err := statedir.Open()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(func(string) {}, exitAborted)
	defer stop()
	return executor.New(h).Prepare(ctx, c.Ref)
}

// backgroundVar turns work in the background off, with the value "off".
const backgroundVar = "TURN_BACKGROUND"

// prepareNext starts prepareCmd in a session of its own. What it cannot do, the next
// turn does.
func prepareNext(turn *executor.Turn) {
	if turn.State == "" || os.Getenv(backgroundVar) == "off" {
		return
	}
	cmd := exec.Command("/proc/self/exe", "prepare-next", string(turn.ID))
	cmd.Args[0] = "turn"
	cmd.Dir = "/"
	if dir, err := statedir.Locate(); err == nil {
		cmd.Env = append(os.Environ(), "TURN_HOME="+dir) // it may have been relative
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.Start() == nil {
		_ = cmd.Process.Release()
	}
}
