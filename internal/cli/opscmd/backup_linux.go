//go:build !turnstone_client

package opscmd

import (
	"context"
	"io"

	"turnstone.dev/turnstone/internal/backup"
	"turnstone.dev/turnstone/internal/cli"
)

// Run makes or updates a backup.
func (c *BackupCmd) Run(a *cli.App) error {
	return a.Do(func(ctx context.Context) error {
		if err := a.OnlyHere("backup"); err != nil {
			return err
		}
		dir, err := a.StateDir()
		if err != nil {
			return err
		}
		r, err := backup.Make(ctx, backup.Options{Dir: dir, To: c.To, Keys: c.Keys,
			Shared: a.Env.Database != "", Dumped: c.Dumped})
		if r != nil {
			r.Objects = a.Env.Store
		}
		return a.Result(r, err, func(w io.Writer) { printBackup(w, r) })
	})
}
