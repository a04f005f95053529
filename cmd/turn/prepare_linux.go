//go:build !turnstone_client

package main

import (
	"os/exec"
	"syscall"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
)

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
