// Package domains gives new sessions their domains, and opens domains with the keys of a ring.
package domains

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

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

	mu    sync.Mutex                              // of the first domain of the rule One
	joins map[turnstone.DomainID][]*statedir.Lock // of domain.use.lock, by callers of New: see Settle
}

// New returns the domains of dir, whose keys ring has.
func New(dir *statedir.Dir, rule Rule, ring *keyring.Ring) *Keys {
	return &Keys{dir: dir, rule: rule, ring: ring,
		joins: make(map[turnstone.DomainID][]*statedir.Lock)}
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
// same time, and another one may be about to destroy it.
func (k *Keys) one(ctx context.Context) (turnstone.DomainID, error) {
	for {
		id, err := k.join(ctx)
		if err != nil || id != "" {
			return id, err
		}
		select {
		case <-ctx.Done():
			return "", turnstone.NewError("domains.new", turnstone.KindCanceled, k.dir.Path(file),
				context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// join returns the domain of all sessions, which Shred of any process leaves alone until Settle;
// empty: it is being destroyed.
func (k *Keys) join(ctx context.Context) (turnstone.DomainID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	lock, err := statedir.Acquire(ctx, k.dir.Path(file+".lock"), nil)
	if err != nil {
		return "", err
	}
	defer lock.Release()
	use, err := statedir.TryShare(k.usePath())
	if err != nil || use == nil {
		return "", err
	}
	id, err := oneOf(k.dir)
	if err == nil && id == "" {
		if id, err = k.create(ctx); err == nil {
			err = filestamp.WriteFile(k.dir.Path(file), []byte(id+"\n"), 0o600)
		}
	}
	if err != nil {
		use.Release()
		return "", err
	}
	k.joins[id] = append(k.joins[id], use)
	return id, nil
}

// usePath is the file whose lock everybody shares who is about to store a session in the domain of
// all sessions, and whom Shred must not forget.
func (k *Keys) usePath() string { return k.dir.Path(file + ".use.lock") }

// notOne makes the next session get another domain than id, whose key is about to be destroyed.
func (k *Keys) notOne(ctx context.Context, id turnstone.DomainID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, err := oneOf(k.dir); err != nil || one != id {
		return err
	}
	lock, err := statedir.Acquire(ctx, k.dir.Path(file+".lock"), nil)
	if err != nil {
		return err
	}
	defer lock.Release()
	if one, err := oneOf(k.dir); err != nil || one != id { // another process was faster
		return err
	}
	err = os.Remove(k.dir.Path(file))
	if err == nil {
		err = filestamp.SyncDir(k.dir.Root)
	}
	if err != nil {
		return turnstone.NewError("domains.shred", turnstone.KindUnavailable, k.dir.Path(file), err)
	}
	return nil
}

// oneOf returns the domain of all sessions of dir; empty: there is none.
func oneOf(dir *statedir.Dir) (turnstone.DomainID, error) {
	b, err := os.ReadFile(dir.Path(file))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", turnstone.NewError("domains.new", turnstone.KindUnavailable, dir.Path(file), err)
	}
	id, err := seal.ParseID(strings.TrimSpace(string(b)))
	if err != nil {
		return "", err
	}
	return turnstone.DomainID(id.String()), nil
}

// Settle says that the session of a domain that New returned is stored, or never will be: see
// keyring.Ring.Settle.
func (k *Keys) Settle(id turnstone.DomainID) {
	k.mu.Lock()
	if all := k.joins[id]; len(all) > 0 {
		all[0].Release()
		k.joins[id] = all[1:]
	}
	k.mu.Unlock()
	if named, err := seal.ParseID(string(id)); err == nil {
		k.ring.Settle(named)
	}
}

// Discard destroys the key of a domain that New made for one session, which is not stored. The domain
// of all sessions stays.
func (k *Keys) Discard(ctx context.Context, id turnstone.DomainID) error {
	if one, err := oneOf(k.dir); err != nil || one == id {
		return err
	}
	return k.Shred(ctx, id, nil)
}

// Collect destroys the keys of domains of dir that used rejects: see keyring.Table.Collect. It needs
// no key. The domain of all sessions stays.
func Collect(ctx context.Context, dir *statedir.Dir, before time.Time, dry bool,
	used func(ctx context.Context, id turnstone.DomainID) (bool, error)) ([]turnstone.DomainID, error) {
	one, err := oneOf(dir)
	if err != nil {
		return nil, err
	}
	ids, err := keyring.NewTable(dir).Collect(ctx, before, dry,
		func(ctx context.Context, id keyring.ID) (bool, error) {
			if turnstone.DomainID(id.String()) == one {
				return true, nil
			}
			return used(ctx, turnstone.DomainID(id.String()))
		})
	gone := []turnstone.DomainID{}
	for _, id := range ids {
		gone = append(gone, turnstone.DomainID(id.String()))
	}
	return gone, err
}

// Damaged calls f with each domain of dir whose record cannot be read.
func Damaged(dir *statedir.Dir, f func(id turnstone.DomainID, err error)) error {
	table := keyring.NewTable(dir)
	ids, err := table.List()
	for _, id := range ids {
		if _, err := table.Get(id); err != nil && !errors.Is(err, keyring.ErrShredded) {
			f(turnstone.DomainID(id.String()), err)
		}
	}
	return err
}

// Has reports whether dir has the record of a domain.
func Has(dir *statedir.Dir, id turnstone.DomainID) bool {
	named, err := seal.ParseID(string(id))
	return err == nil && keyring.NewTable(dir).Has(named)
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

// Shred destroys the key of a domain, unless alone, which may be nil, returns an error: it is called
// when no session can be added to the domain before Shred has returned. If somebody is adding one,
// the error is of kind Unavailable. Destroying a key again does nothing.
func (k *Keys) Shred(ctx context.Context, id turnstone.DomainID,
	alone func(context.Context) error) error {
	named, err := seal.ParseID(string(id))
	if err != nil {
		return err
	}
	if one, err := oneOf(k.dir); err != nil {
		return err
	} else if one == id {
		use, err := statedir.TryAcquire(k.usePath())
		if err != nil {
			return turnstone.NewError("domains.shred", turnstone.KindUnavailable, k.usePath(), err)
		}
		if use == nil {
			return turnstone.Errorf("domains.shred", turnstone.KindUnavailable, "domain "+string(id),
				"a session is just being added to it").WithHint("try again")
		}
		defer use.Release()
	}
	if alone != nil {
		if err := alone(ctx); err != nil {
			return err
		}
	}
	if err := k.notOne(ctx, id); err != nil {
		return err
	}
	return k.ring.Shred(ctx, named)
}
