package tenants

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
)

// sharedFolders hold nothing of a tenant: the guest kernel, and snapshots of machines that have
// booted a template, under keys that only who has the template's image finds. The cache is not
// among them, because it has images that the operator's credentials may have fetched.
func sharedFolders() []string { return []string{"kernel", "snapshots"} }

// share gives a tenant's state directory the public parts of the node's, and the node's key, which
// signs the statements about its turns.
func share(from, to *statedir.Dir) error {
	for _, name := range sharedFolders() {
		target, err := from.MkdirAll(name)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to.Path(name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if _, err := to.MkdirAll("keys"); err != nil {
		return err
	}
	for _, name := range []string{"node", "node.pub"} {
		if err := link(from.Path("keys", name), to.Path("keys", name)); err != nil {
			return err
		}
	}
	return nil
}

// Refresh gives a tenant the operator's configuration and the templates of the program that were
// built since. The files are links, so that neither can remove the other's.
func (s *State) Refresh(ctx context.Context) error {
	if s.shared == nil {
		return nil
	}
	if err := config.Copy(s.shared.Dir.Root, s.Dir.Root); err != nil {
		return failed(s.Tenant, err)
	}
	built, err := s.shared.Templates.List(ctx)
	if err != nil {
		return err
	}
	for _, e := range built {
		if !e.BuiltIn || !e.Ready {
			continue
		}
		from := s.shared.Dir.Path("templates", e.Digest.Hex())
		if err := linkTemplate(from, s.Dir.Path("templates", e.Digest.Hex())); err != nil {
			return failed(s.Tenant, err)
		}
	}
	return nil
}

// linkTemplate makes the folder of a template's image, unless it exists. A template without an
// image of its own is a layer, whose files are in the store of its tenant.
func linkTemplate(from, to string) error {
	if _, err := os.Stat(filepath.Join(from, "root.erofs")); err != nil {
		return nil
	}
	if _, err := os.Lstat(to); err == nil {
		return nil
	}
	above := filepath.Dir(to)
	if err := os.MkdirAll(filepath.Join(above, "tmp"), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Join(above, "tmp"), "shared-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	for _, name := range []string{"root.erofs", "root.tree"} {
		if err := link(filepath.Join(from, name), filepath.Join(tmp, name)); err != nil {
			return err
		}
	}
	// a copy: each store writes its own stamps there
	b, err := os.ReadFile(filepath.Join(from, "manifest.json"))
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, "manifest.json"), b, 0o644)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// link makes to another name of the file from, in the place of another file. It does nothing if
// from does not exist.
func link(from, to string) error {
	a, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	b, err := os.Lstat(to)
	if err == nil && os.SameFile(a, b) {
		return nil
	}
	if err == nil {
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	return os.Link(from, to)
}

// OpensNetwork reports whether a caller of the server may have a network where the configuration has
// it off by default: the same that a document may.
func (s *State) OpensNetwork() (bool, error) {
	c, err := config.Load(s.Dir.Root)
	return err == nil && slices.Contains(c.Documents.Grant, "network"), err
}

// Closed returns the rules of a caller's allow that open closed addresses, which the configuration
// does not grant: the same that a document may not open.
func (s *State) Closed(allow []string) ([]netplan.Closed, error) {
	c, err := config.Load(s.Dir.Root)
	return netplan.Ungranted(c, allow), err
}

// Room returns an error of kind Exhausted if the disk of the state directory is nearly full.
func (s *State) Room() error {
	c, err := config.Load(s.Dir.Root)
	if err != nil {
		return err
	}
	if err := diskspace.Room(s.Dir.Root, c.Limits.FreeSpace); err != nil {
		return failed(s.Tenant, err)
	}
	return nil
}

// mayTake returns an error if the node should take no turn of a lost one: there is no room, or its bucket
// cannot be used.
func (s *State) mayTake() error {
	if err := s.bucket.Away(); err != nil {
		return err
	}
	return s.Room()
}

// StoreAway returns why the bucket of sessions cannot be used, in words for callers; empty: it can, or there
// is none.
func (s *Set) StoreAway() string { return s.o.Bucket.Reason() }

// Full reports whether the disk of the state directory is nearly full, as Room does for tenants.
func (s *Set) Full() bool {
	c, err := config.Load(s.root.Root)
	return err == nil && diskspace.Room(s.root.Root, c.Limits.FreeSpace) != nil
}

// IsImage reports whether ref is the reference of a registry's image, which a template's name is not.
func IsImage(ref string) bool { return template.IsImage(ref) && template.CheckName(ref) == nil }

// Size returns the memory of this computer, and the size of the disk with the state directory; 0 is
// unknown.
func (s *Set) Size() (memory, disk turnstone.Bytes) {
	h := config.HostOf(s.root.Root)
	return h.Memory, h.Disk
}

// Shared returns the state that keeps what all tenants share: the operator's.
func (s *Set) Shared() *State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[auth.OperatorTenant]
}
