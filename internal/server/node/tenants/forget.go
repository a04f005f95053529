package tenants

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone/internal/template"
)

// identity are the entries that stay when a state is forgotten: keys, trusted keys, and the owner's name in the
// bucket. With them a tenant that comes back is the same one.
var identity = []string{"keys", "trusted", "revoked", "client", "domain", "domains", "store-id"}

// derived are the entries of a state directory that a tenant without content has, too. They are made again on demand.
var derived = []string{"cache", "config.toml", "context.db", "context.db-shm", "context.db-wal",
	"firecracker", "gvisor", "images", "kernel", "leases", "slots", "snapshots", "store", "store-s3", "templates", "trash"}

// objects are the folders of a state directory that have an entry for each object of a tenant.
var objects = []string{"held", "homes", "machines", "sandboxes", "turns"}

// A usage notes who uses a state. The lock of its Set guards it.
type usage struct {
	users int
	last  time.Time // when the last user ended, or a look found content
}

// Use keeps a state open until ctx ends. A context without an end keeps it for good.
func (s *Set) Use(ctx context.Context, st *State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use(ctx, st)
}

func (s *Set) use(ctx context.Context, st *State) {
	st.usage.users++
	context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		st.usage.users--
		st.usage.last = time.Now()
	})
}

// Forget closes the states of tenants without content that no call has used for Options.Idle, and removes their
// files. Only what identifies a tenant stays.
func (s *Set) Forget() { s.forget(s.o.Idle) }

// forget is Forget for the tenants that no call has used for so long.
func (s *Set) forget(unused time.Duration) {
	now := time.Now()
	s.mu.Lock()
	seen := make(map[*State]time.Time)
	for _, st := range s.all {
		if !st.Operator() && st.usage.users == 0 && now.Sub(st.usage.last) >= unused {
			seen[st] = st.usage.last
		}
	}
	s.mu.Unlock()
	for st, last := range seen { // without the lock: calls of other tenants do not wait for it
		empty, err := st.empty(context.Background())
		if err != nil {
			slog.Warn("a tenant's content cannot be listed", "tenant", st.Tenant, "err", err)
		}
		s.mu.Lock()
		// Only a user makes content.
		if used := st.usage.users > 0 || !st.usage.last.Equal(last); !used && !s.closed {
			st.usage.last = now
			if empty && err == nil {
				s.drop(st)
			}
		}
		s.mu.Unlock()
	}
}

// drop closes the state of a tenant without content, and removes its files. The lock is held, so that none opens it
// meanwhile.
func (s *Set) drop(st *State) {
	delete(s.all, st.Tenant)
	if err := errors.Join(st.close(), st.clear()); err != nil {
		slog.Warn("files of a tenant without content stay", "tenant", st.Tenant, "err", err)
		return
	}
	slog.Info("a tenant without content is forgotten", "tenant", st.Tenant)
}

// clear removes all files of a tenant except its identity. names lists a tenant by its server folder, so that folder
// is removed last: after a crash the next start opens the tenant, and forgets it again.
func (s *State) clear() error {
	entries, err := os.ReadDir(s.Dir.Root)
	for _, e := range entries {
		if name := e.Name(); name != serverFolder && !slices.Contains(identity, name) {
			err = errors.Join(err, os.RemoveAll(s.Dir.Path(name)))
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(s.Dir.Path(serverFolder))
}

// empty reports whether a tenant has no content: no session, sandbox, turn, home, snapshot, nor a template of its
// own. A file that this program does not know is content.
func (s *State) empty(ctx context.Context) (bool, error) {
	entries, err := os.ReadDir(s.Dir.Root)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		name := e.Name()
		known := name == serverFolder || slices.Contains(identity, name) || slices.Contains(derived, name) ||
			slices.Contains(objects, name) || strings.HasSuffix(name, ".lock")
		if !known {
			return false, nil
		}
	}
	if err := s.Turns.Sweep(); err != nil {
		return false, err
	}
	kept, err := os.ReadDir(s.Dir.Path(serverFolder))
	if err != nil {
		return false, err
	}
	folders := slices.Clone(objects)
	for _, e := range kept { // owners have sessions or templates, and received files end with their call
		if name := e.Name(); name != ownersFolder && name != receivedFolder {
			folders = append(folders, filepath.Join(serverFolder, name))
		}
	}
	for _, name := range folders {
		if some, err := has(s.Dir.Path(name)); some || err != nil {
			return false, err
		}
	}
	sessions, err := s.Executor.Sessions(ctx)
	if len(sessions) > 0 || err != nil {
		return false, err
	}
	templates, err := s.Templates.List(ctx)
	if err != nil {
		return false, err
	}
	own := func(t template.Entry) bool { return !t.BuiltIn }
	return !slices.ContainsFunc(templates, own), nil
}

// has reports whether a folder has something besides locks; a folder that is missing has nothing.
func has(folder string) (bool, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !strings.HasSuffix(e.Name(), ".lock") }), err
}
