package repotest

import (
	"context"
	"sync"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Keys are keys in memory: a stand-in for a keyring.
type Keys struct {
	mu     sync.Mutex
	one    turnstone.DomainID // of all sessions; empty: each has its own
	shared bool
	locked bool
	keys   map[turnstone.DomainID]seal.Key
}

var _ interface {
	repo.Keys
	repo.Shredder
} = (*Keys)(nil)

// NewKeys returns keys. If shared is set, all new sessions are in one domain.
func NewKeys(shared bool) *Keys {
	return &Keys{shared: shared, keys: map[turnstone.DomainID]seal.Key{}}
}

// Lock takes the keys away, or gives them back.
func (k *Keys) Lock(locked bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.locked = locked
}

// New implements repo.Keys.
func (k *Keys) New(context.Context) (turnstone.DomainID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.one != "" {
		return k.one, nil
	}
	key := seal.NewKey()
	d, err := seal.New(key)
	if err != nil {
		return "", err
	}
	id := turnstone.DomainID(d.ID().String())
	if k.keys[id] = key; k.shared {
		k.one = id
	}
	return id, nil
}

// Open implements repo.Keys.
func (k *Keys) Open(_ context.Context, id turnstone.DomainID) (*seal.Domain, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, there := k.keys[id]
	if k.locked || !there {
		return nil, turnstone.NewError("keys.open", turnstone.KindUnavailable, string(id),
			turnstone.ErrLocked)
	}
	return seal.New(key)
}

// Shred implements repo.Shredder.
func (k *Keys) Shred(ctx context.Context, id turnstone.DomainID,
	alone func(context.Context) error) error {
	if err := alone(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if key, there := k.keys[id]; there {
		key.Erase()
	}
	delete(k.keys, id)
	return nil
}
