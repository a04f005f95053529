// Package ext4 reads a file system image of type ext4 that somebody hostile may
// have written: the scratch disk of a sandbox. It is read only, and it reads what
// Linux makes of such a disk: extents and block maps, linear and hashed
// directories, extended attributes, no journal that has to be played back.
//
// Whatever an image says, the work is bounded by the image's size and by Options:
// a block belongs to one file, a directory has one name, and what is neither is an
// error of kind Integrity.
//
// The format is described in the kernel's Documentation/filesystems/ext4.
package ext4

import (
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options bounds what is read of an image. Zero values are the defaults.
type Options struct {
	// Holes is how many bytes of files may be holes, in all files together: they
	// take no room on the disk and all the time to read. The default is 64 GiB.
	Holes int64
	// Entries is how many directory entries are read in all; the default is 16 Mi.
	Entries int64
}

const (
	defaultHoles   = 64 << 30
	defaultEntries = 16 << 20
)

// Open reads what describes the file system in r, of size bytes. The image must
// not change while it is read; if it does, what is read is wrong, and nothing
// worse happens. The FS is safe for concurrent use.
func Open(r io.ReaderAt, size int64) (*FS, error) { return OpenOptions(r, size, Options{}) }

// Root returns the top directory.
func (fs *FS) Root() (*Inode, error) { return fs.inode(rootInode) }

// Lookup returns the file at path, whose elements are separated by "/"; symbolic
// links are not followed. An error is of kind KindNotFound when there is none.
func (fs *FS) Lookup(path string) (*Inode, error) {
	n, err := fs.Root()
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(path, "/") {
		if name == "" {
			continue
		}
		if n, err = n.child(name); err != nil {
			return nil, err
		}
	}
	return n, nil
}

var _ tree.Node = (*Inode)(nil)

// corrupt returns the error for an image that is not what a Linux kernel writes.
func corrupt(format string, args ...any) error {
	return turnstone.Errorf("ext4.read", turnstone.KindIntegrity, "the sandbox's disk",
		format, args...).
		WithHint("the file system of this sandbox is damaged, or something in it wrote to the disk past the file system; what it holds cannot be kept")
}

func unsupported(format string, args ...any) error {
	return turnstone.Errorf("ext4.read", turnstone.KindInvalid, "the sandbox's disk",
		format, args...).
		WithHint("the file system has a feature that is not read here; do not change the features of the sandbox's scratch disk")
}

func exhausted(hint, format string, args ...any) error {
	return turnstone.Errorf("ext4.read", turnstone.KindExhausted, "the sandbox's disk",
		format, args...).WithHint(hint)
}
