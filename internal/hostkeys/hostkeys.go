// Package hostkeys has the keys of a state directory's sealed sessions, as its configuration says.
package hostkeys

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/fsimage/lowerdir"
	"turnstone.dev/turnstone/internal/keyring"
	"turnstone.dev/turnstone/internal/keyring/clientkey"
	"turnstone.dev/turnstone/internal/keyring/domains"
	"turnstone.dev/turnstone/internal/keyring/ringconfig"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/seal"
)

// Keys are the keys of a state directory. They read its configuration at their first use. Their
// methods are safe for concurrent use, and those of repo.Keys and repo.Shredder. Close them.
type Keys struct {
	dir   *statedir.Dir
	ask   func(what string) ([]byte, error)
	token string // of Vault

	mu   sync.Mutex
	kept *domains.Keys
	ring *ringconfig.Keyring

	memory sync.Mutex // of folders in memory that belong to keys of clients
}

// operator is the tenant of a state directory that is no tenant's.
const operator = "local"

// New returns the keys of dir. ask returns the passphrase of the keyring; nil: there is none. token is
// shown to Vault if vault.token names no file.
func New(dir *statedir.Dir, ask func(what string) ([]byte, error), token string) *Keys {
	return &Keys{dir: dir, ask: ask, token: token}
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
	o := ringconfig.Options{Dir: k.dir, Settings: c.Keys, Vault: c.Vault, Tenant: operator,
		Token: k.token, Ask: k.ask}
	if all := filepath.Dir(k.dir.Root); filepath.Base(all) == "tenants" { // of a server's node
		o.Tenant = filepath.Base(k.dir.Root)
		o.Within(&statedir.Dir{Root: filepath.Dir(all)})
	}
	ring, err := ringconfig.Open(o)
	if err != nil {
		return nil, err
	}
	ring.Clients.OnForget(k.forgotten)
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

// Shred destroys the key of a domain, unless alone fails: see domains.Keys.Shred.
func (k *Keys) Shred(ctx context.Context, id turnstone.DomainID,
	alone func(context.Context) error) error {
	keys, err := k.keys()
	if err != nil {
		return err
	}
	return keys.Shred(ctx, id, alone)
}

// Settle says that the session of a domain that New returned is stored, or never will be.
func (k *Keys) Settle(id turnstone.DomainID) {
	if keys, err := k.keys(); err == nil {
		keys.Settle(id)
	}
}

// Discard destroys the key of a domain whose only session was not stored.
func (k *Keys) Discard(ctx context.Context, id turnstone.DomainID) error {
	keys, err := k.keys()
	if err != nil {
		return err
	}
	return keys.Discard(ctx, id)
}

// Collect destroys the keys of domains that nothing uses: see domains.Collect. It needs no key, and no
// valid configuration.
func (k *Keys) Collect(ctx context.Context, before time.Time, dry bool,
	used func(ctx context.Context, id turnstone.DomainID) (bool, error)) ([]turnstone.DomainID, error) {
	return domains.Collect(ctx, k.dir, before, dry, used)
}

// Damaged calls f with each domain whose file cannot be read.
func (k *Keys) Damaged(f func(id turnstone.DomainID, err error)) error {
	return domains.Damaged(k.dir, f)
}

// Has reports whether there is a key of a domain, wrapped.
func (k *Keys) Has(id turnstone.DomainID) bool { return domains.Has(k.dir, id) }

// Seals reports whether a new session is sealed.
func (k *Keys) Seals() (bool, error) {
	keys, err := k.keys()
	if err != nil {
		return false, err
	}
	return keys.Seals(), nil
}

// Give takes the key of a client, which seals the client's new sessions and opens those that it has
// sealed, and returns its name. It stays for keys.idle after its last use: see Hold. The error is of
// kind Invalid if new sessions are not sealed with keys of clients.
func (k *Keys) Give(b []byte) (name string, err error) {
	keys, err := k.keys()
	if err != nil {
		return "", err
	}
	if !keys.Seals() || k.ring.Primary() != keyring.KindClient {
		return "", turnstone.Errorf("keyring.client", turnstone.KindInvalid, "the client's key",
			"is not used here: new sessions are not sealed with the keys of clients").
			WithHint("let the server's operator set keys.seal and keys.wrap = \"client\", or send no " +
				"key: turn host seal NAME --off")
	}
	key, err := seal.ParseKey(b)
	if err != nil {
		return "", err
	}
	defer key.Erase()
	if key.IsZero() {
		return "", turnstone.Errorf("keyring.client", turnstone.KindInvalid, "the client's key",
			"is nothing but zeros").WithHint("make a key with turn host seal NAME")
	}
	return k.ring.Clients.Give(key)
}

// With returns a context whose new sessions are sealed with the key called name. The key stays until
// ctx ends. The error is of kind Unavailable if the key was forgotten.
func (k *Keys) With(ctx context.Context, name string) (context.Context, error) {
	if _, err := k.keys(); err != nil {
		return ctx, err
	}
	release, err := k.ring.Clients.Hold(name)
	if err != nil {
		return ctx, err
	}
	context.AfterFunc(ctx, release)
	return clientkey.With(ctx, name), nil
}

// clients is the folder in memory with a folder for each client's key.
const clients = "clients"

// Memory returns a folder in memory, called elem, for what is not sealed and belongs to a turn. If a
// client's key is in ctx, the folder is removed when that key is forgotten.
func (k *Keys) Memory(ctx context.Context, elem string) (string, error) {
	name := clientkey.Chosen(ctx)
	if name == "" {
		return k.dir.Memory("own", elem)
	}
	k.memory.Lock()
	defer k.memory.Unlock()
	return k.dir.Memory(clients, name, elem)
}

// Sweep forgets, after the idle time, what a former process had in memory for keys of clients.
func (k *Keys) Sweep() error {
	if _, err := k.keys(); err != nil || !k.dir.HasMemory() {
		return err
	}
	top, err := k.dir.Memory(clients)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(top)
	for _, e := range entries {
		time.AfterFunc(k.ring.Clients.Idle(), func() { k.forgotten(e.Name()) })
	}
	return err
}

// forgotten removes what is in memory, in the clear, of the sessions that a client's key opens: it
// was forgotten. An image that a machine uses stays, as its key does then.
func (k *Keys) forgotten(name string) {
	if !k.dir.HasMemory() {
		return
	}
	k.memory.Lock()
	defer k.memory.Unlock()
	if release, err := k.ring.Clients.Hold(name); err == nil { // the client has sent it again
		release()
		return
	}
	err := k.dir.ForgetMemory(clients, name)
	top, merr := k.dir.Memory("images")
	entries, _ := os.ReadDir(top)
	for _, e := range entries {
		id, iderr := seal.ParseID(e.Name())
		if iderr != nil || !k.wrapped(id, name) {
			continue
		}
		none := func(turnstone.ImageRecipe) bool { return false }
		_, _, perr := lowerdir.New(filepath.Join(top, e.Name()), nil, lowerdir.Options{}).Prune(none,
			false)
		err = errors.Join(err, perr)
	}
	if err = errors.Join(err, merr); err != nil {
		slog.Warn("files of a client's key that was forgotten stay in memory", "key", name, "err", err)
	}
}

// wrapped reports whether the key called name wraps that of a domain.
func (k *Keys) wrapped(id seal.ID, name string) bool {
	rec, err := k.ring.Table().Get(id)
	return err == nil && slices.ContainsFunc(rec.Wrappings, func(w keyring.Wrapping) bool {
		return w.Kind == keyring.KindClient && w.Name == name
	})
}

// Close forgets all keys.
func (k *Keys) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ring != nil {
		k.ring.Close()
	}
}
