//go:build !linux || turnstone_client

package opscmd

import (
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/platform"
)

// Run reports that nothing is stored where no sandboxes run.
func (c *BackupCmd) Run(*cli.App) error { return cli.Fail(platform.NoSandboxes("backup")) }
