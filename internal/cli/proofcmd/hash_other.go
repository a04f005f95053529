//go:build !linux || turnstone_client

package proofcmd

import (
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/platform"
)

// Run reports that the FS hash, which contains Linux's owners, modes and attributes, is only known
// there.
func (c *HashCmd) Run(*cli.App) error { return cli.Fail(platform.NoSandboxes("hash")) }
