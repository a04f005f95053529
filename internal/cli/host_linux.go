//go:build !turnstone_client

package cli

import "turnstone.dev/turnstone/internal/config"

// configuredHost returns the key host of config.toml in the state directory dir. The command reports
// a damaged file itself.
func configuredHost(dir string) string {
	c, _ := config.Load(dir)
	return c.Host
}
