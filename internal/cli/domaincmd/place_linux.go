//go:build !turnstone_client

package domaincmd

import (
	"context"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/cli"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/repo/location"
	"turnstone.dev/turnstone/internal/statedir"
)

// operator is the tenant of the state directory itself.
const operator = "local"

// with calls f with the keyring of the state directory, or of a tenant in it. A command that writes
// makes a missing state directory.
func (p *Place) with(a *cli.App, writes bool,
	f func(ctx context.Context, k *ringconfig.Keyring) error) error {
	return a.Do(func(ctx context.Context) error {
		if err := a.OnlyHere("domain"); err != nil {
			return err
		}
		o, err := p.options(a, writes)
		if err != nil {
			return err
		}
		k, err := ringconfig.Open(o)
		if err != nil {
			return err
		}
		defer k.Close()
		return f(ctx, k)
	})
}

// sessions returns the names or IDs of the sessions in each domain.
func (p *Place) sessions(ctx context.Context, a *cli.App) (map[string][]string, error) {
	o, err := p.options(a, false)
	if err != nil {
		return nil, err
	}
	url := a.Env.Database
	if o.Tenant != operator {
		url = location.OfTenant(url, o.Tenant)
	}
	if _, err := os.Stat(o.Dir.Path("context.db")); err != nil && url == "" {
		return nil, nil // there are none, and listing them makes no file
	}
	db, err := location.Sessions(ctx, o.Dir, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	all, err := db.List(ctx)
	in := map[string][]string{}
	for _, s := range all {
		in[string(s.Domain)] = append(in[string(s.Domain)], s.Label())
	}
	return in, err
}

// options returns the settings of the selected keyring.
func (p *Place) options(a *cli.App, writes bool) (o ringconfig.Options, err error) {
	root, err := a.Locate()
	if err == nil && writes {
		_, err = a.StateDir() // makes it, and checks who can write it
	}
	if err != nil {
		return o, err
	}
	o.Dir = &statedir.Dir{Root: root}
	o.Tenant, o.Token, o.Ask = operator, a.Env.VaultToken, a.Passphrase
	o.UI = pluginUI(a)
	c, err := config.Load(root)
	if err != nil {
		return o, err
	}
	o.Settings, o.Vault = c.Keys, c.Vault
	if p.Tenant == "" || p.Tenant == operator {
		return o, nil
	}
	return o, p.tenant(&o)
}

// tenant selects the state directory of a tenant, which a server has made.
func (p *Place) tenant(o *ringconfig.Options) error {
	if err := turnstone.CheckName(turnstone.NameOfHome, p.Tenant); err != nil {
		return turnstone.Errorf("domain", turnstone.KindInvalid, "--tenant",
			"%.80q is not the name of a tenant", p.Tenant)
	}
	dir := filepath.Join(o.Dir.Root, "tenants", p.Tenant)
	if _, err := os.Stat(dir); err != nil {
		return turnstone.Errorf("domain", turnstone.KindNotFound, "tenant "+p.Tenant,
			"has no state in %s", o.Dir.Root).WithHint("set TURN_HOME to the server's state directory")
	}
	o.Within(o.Dir)
	o.Dir, o.Tenant = &statedir.Dir{Root: dir}, p.Tenant
	return nil
}
