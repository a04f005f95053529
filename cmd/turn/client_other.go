//go:build !linux || turnstone_client

package main

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/cli/hostcmd"
	"turnstone.dev/turnstone/internal/platform"
)

// Run checks a host; no sandbox can run here.
func (c *doctorCmd) Run(a *cli.App) error {
	if done, err := hostcmd.Doctor(a, c.localOnly()); done {
		return err
	}
	return noSandboxes("doctor")
}

// Run lists the templates of a host.
func (c *templateLsCmd) Run(a *cli.App) error {
	if found, err := c.listOnHost(a); found {
		return err
	}
	return noSandboxes("template.ls")
}

// Run reports that no template is stored here.
func (c *templateShowCmd) Run(*cli.App) error { return noSandboxes("template.show") }

// Run reports that no template is stored here.
func (c *templatePullCmd) Run(*cli.App) error { return noSandboxes("template.pull") }

// Run reports that no template is stored here.
func (c *templateTagCmd) Run(*cli.App) error { return noSandboxes("template.tag") }

// prepareNext does nothing: no turn is stored here.
func prepareNext(*cli.App, *turnstone.TurnReport) {}

func noSandboxes(op turnstone.Op) error { return cli.Fail(platform.NoSandboxes(op)) }
