//go:build !linux || turnstone_client

package domaincmd

import (
	"context"

	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/platform"
)

// with reports that nothing is stored where no sandboxes run.
func (p *Place) with(*cli.App, bool,
	func(ctx context.Context, k *ringconfig.Keyring) error) error {
	return cli.Fail(platform.NoSandboxes("domain"))
}

func (p *Place) sessions(context.Context, *cli.App) (map[string][]string, error) { return nil, nil }
