package tenants

import (
	"context"
	"os"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/diskspace"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/template"
)

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
		to := s.Dir.Path("templates", e.Digest.Hex())
		if err := s.shared.images.Link(from, to, func() []string { return s.others(e.Digest) }); err != nil {
			return failed(s.Tenant, err)
		}
	}
	return nil
}

// others returns where the tenants have the template with that digest, if they do.
func (s *State) others(digest turnstone.Digest) []string {
	var dirs []string
	entries, _ := os.ReadDir(s.root.Path(folder)) // on an error, the others read the image again
	for _, e := range entries {
		dirs = append(dirs, s.root.Path(folder, e.Name(), "templates", digest.Hex()))
	}
	return dirs
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
