// Package public gives a tenant's state directory the parts of the node's that all tenants share.
package public

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/statedir"
)

// Key makes the node's key before a tenant shares it: all turns and statements of a node are signed by one.
func Key(ctx context.Context, root *statedir.Dir) error {
	_, err := (key.Ring{Dir: root}).NodeKey(ctx)
	return err
}

// sharedFolders hold nothing of a tenant: the guest kernel, gVisor's image of this program's agent, and snapshots
// of machines that have booted a template, under keys that only who has the template's image finds. The cache is not
// among them, because it has images that the operator's credentials may have fetched.
func sharedFolders() []string { return []string{"gvisor", "kernel", "snapshots"} }

// Share gives a tenant's state directory the public parts of the node's, and the node's key, which
// signs the statements about its turns.
func Share(from, to *statedir.Dir) error {
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
