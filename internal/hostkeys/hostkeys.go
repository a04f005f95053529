// Package hostkeys has the keys of a state directory's sealed sessions, as its configuration says.
package hostkeys

import (
	"cmp"
	"context"
	"path/filepath"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/keyring/domains"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Keys are the keys of a state directory. They read its configuration at their first use. Their
// methods are safe for concurrent use, and those of repo.Keys and repo.Shredder. Close them.
type Keys struct {
	dir *statedir.Dir
	ask func(what string) ([]byte, error)

	mu   sync.Mutex
	kept *domains.Keys
	ring *ringconfig.Keyring
}

// operator is the tenant of a state directory that is no tenant's.
const operator = "local"

// New returns the keys of dir. ask returns the passphrase of the keyring; nil: there is none.
func New(dir *statedir.Dir, ask func(what string) ([]byte, error)) *Keys {
	return &Keys{dir: dir, ask: ask}
}

func (k *Keys) keys() (*domains.Keys, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept != nil {
		return k.kept, nil
	}
	c, err := config.Load(k.dir.Root)
	if err != nil {
		return nil, err
	}
	o := ringconfig.Options{Dir: k.dir, Settings: c.Keys, Vault: c.Vault, Tenant: operator, Ask: k.ask}
	if all := filepath.Dir(k.dir.Root); filepath.Base(all) == "tenants" { // of a server's node
		o.Tenant = filepath.Base(k.dir.Root)
		o.Within(&statedir.Dir{Root: filepath.Dir(all)})
	}
	ring, err := ringconfig.Open(o)
	if err != nil {
		return nil, err
	}
	k.ring = ring
	k.kept = domains.New(k.dir, domains.Rule(cmp.Or(c.Keys.Seal, string(domains.Off))), ring.Ring)
	return k.kept, nil
}

// New returns the domain of a new session.
func (k *Keys) New(ctx context.Context) (turnstone.DomainID, error) {
	keys, err := k.keys()
	if err != nil {
		return "", err
	}
	return keys.New(ctx)
}

// Open returns a domain with its key.
func (k *Keys) Open(ctx context.Context, id turnstone.DomainID) (*seal.Domain, error) {
	keys, err := k.keys()
	if err != nil {
		return nil, err
	}
	return keys.Open(ctx, id)
}

// Shred destroys the key of a domain.
func (k *Keys) Shred(ctx context.Context, id turnstone.DomainID) error {
	keys, err := k.keys()
	if err != nil {
		return err
	}
	return keys.Shred(ctx, id)
}

// Close forgets all keys.
func (k *Keys) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ring != nil {
		k.ring.Close()
	}
}
