//go:build !linux || turnstone_client

package servecmd

import (
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/platform"
)

// Run reports that no sandbox can run here.
func (c *Cmd) Run(*cli.App) error { return cli.Fail(platform.NoSandboxes("serve")) }
