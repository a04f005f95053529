// Package domains gives new sessions their domains, and opens domains with the keys of a ring.
package domains

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// A Rule says which domain a new session gets.
type Rule string

// The rules.
const (
	Off     Rule = "off"     // none: it is not sealed
	Session Rule = "session" // its own
	One     Rule = "one"     // that of all sessions of the state directory
)

// file has the ID of the domain of the rule One.
const file = "domain"

// Keys are the domains of a state directory. Its methods are safe for concurrent use.
type Keys struct {
	dir  *statedir.Dir
	rule Rule
	ring *keyring.Ring

	mu sync.Mutex // of the first domain of the rule One
}

// New returns the domains of dir, whose keys ring has.
func New(dir *statedir.Dir, rule Rule, ring *keyring.Ring) *Keys {
	return &Keys{dir: dir, rule: rule, ring: ring}
}

// New returns the domain of a new session; empty: it is not sealed.
func (k *Keys) New(ctx context.Context) (turnstone.DomainID, error) {
	switch k.rule {
	case Session:
		return k.create(ctx)
	case One:
		return k.one(ctx)
	}
	return "", nil
}

// Seals reports whether a new session is sealed.
func (k *Keys) Seals() bool { return k.rule == Session || k.rule == One }

func (k *Keys) create(ctx context.Context) (turnstone.DomainID, error) {
	o, err := k.ring.Create(ctx)
	if err != nil {
		return "", err
	}
	defer o.Close()
	return turnstone.DomainID(o.ID().String()), nil
}

// one returns the domain of all sessions. The first call makes it; another process may do so at the
// same time.
func (k *Keys) one(ctx context.Context) (turnstone.DomainID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lock, err := statedir.Acquire(ctx, k.dir.Path(file+".lock"), nil)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	b, err := os.ReadFile(k.dir.Path(file))
	if err == nil {
		id, err := seal.ParseID(strings.TrimSpace(string(b)))
		return turnstone.DomainID(id.String()), err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", turnstone.NewError("domains.new", turnstone.KindUnavailable, k.dir.Path(file), err)
	}
	id, err := k.create(ctx)
	if err == nil {
		err = filestamp.WriteFile(k.dir.Path(file), []byte(id+"\n"), 0o600)
	}
	return id, err
}

// Open returns a domain with its key. The errors are those of keyring.Ring.Open.
func (k *Keys) Open(ctx context.Context, id turnstone.DomainID) (*seal.Domain, error) {
	named, err := seal.ParseID(string(id))
	if err != nil {
		return nil, err
	}
	o, err := k.ring.Open(ctx, named)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return seal.Open(named, o.Key())
}

// Shred destroys the key of a domain. Destroying it again does nothing.
func (k *Keys) Shred(ctx context.Context, id turnstone.DomainID) error {
	named, err := seal.ParseID(string(id))
	if err != nil {
		return err
	}
	return k.ring.Shred(ctx, named)
}
