// Package ext4 reads a possibly hostile file system image of type ext4: the scratch disk of a
// sandbox. It reads without writing, and supports the features that Linux uses on such a disk:
// extents and block maps, linear and hashed directories, extended attributes, but no journal that
// requires a replay.
//
// For any image, the work is bounded by the image's size and by Options: a block belongs to a
// single file and a directory has a single name; a violation is an error of kind Integrity.
//
// The kernel's Documentation/filesystems/ext4 describes the format.
package ext4

import (
	"errors"
	"io"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options bound the work on an image. Zero values are the defaults.
type Options struct {
	// Holes bounds the total bytes of holes in all files: holes use no space on the disk but take
	// time to read. The default is 64 GiB.
	Holes int64
	// Entries bounds the total number of directory entries; the default is 16 Mi.
	Entries int64
}

const (
	defaultHoles   = 64 << 30
	defaultEntries = 16 << 20
)

// Open reads the metadata of the file system in r, of size bytes. The image must not change during
// its use; a change leads to wrong data but to nothing worse. The FS is safe for concurrent use.
func Open(r io.ReaderAt, size int64) (*FS, error) { return OpenOptions(r, size, Options{}) }

// ErrJournal is the cause of the error for a file system that was not unmounted or frozen: its
// journal has changes that are not in their places.
var ErrJournal = errors.New("the file system has a journal that requires a replay")

// Root returns the top directory.
func (fs *FS) Root() (*Inode, error) { return fs.inode(rootInode) }

// Lookup returns the file at path, whose elements are separated by "/"; it does not follow symbolic
// links. The error is of kind NotFound if there is no file.
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

// corrupt returns the error for an image that a Linux kernel does not write.
func corrupt(format string, args ...any) error {
	return turnstone.Errorf("ext4.read", turnstone.KindIntegrity, "the sandbox's disk",
		format, args...).
		WithHint("run the turn again without programs that write to the disk directly")
}

func unsupported(format string, args ...any) error {
	return turnstone.Errorf("ext4.read", turnstone.KindInvalid, "the sandbox's disk",
		format, args...).
		WithHint("do not change the features of the sandbox's scratch disk: a feature of its " +
			"file system is not supported")
}

func exhausted(hint, format string, args ...any) error {
	return turnstone.Errorf("ext4.read", turnstone.KindExhausted, "the sandbox's disk",
		format, args...).WithHint(hint)
}
