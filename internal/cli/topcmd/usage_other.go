//go:build !linux

package topcmd

import (
	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/sandboxes"
)

// usage returns nothing: sandboxes run on Linux.
func usage([]sandboxes.Info) map[turnstone.SandboxID]use { return nil }
