//go:build !linux || turnstone_client

package statedir

import (
	"context"
	"os"
)

// remove removes the file or folder at path. No program runs in sandboxes here, so a folder has the
// nesting and the permissions that this program gave it.
func remove(ctx context.Context, path string, _ *int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return os.RemoveAll(path)
}
