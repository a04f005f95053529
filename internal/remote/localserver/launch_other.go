//go:build !linux

package localserver

import (
	"context"
	"os"

	"turnstone.dev/turnstone/internal/platform"
)

// launch reports that no sandbox can run here.
func launch(context.Context, string, string, *os.File) (func() bool, error) {
	return nil, platform.NoSandboxes("server.start")
}
