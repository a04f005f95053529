// Package layer knows what a turn changed: it puts an overlay's upper directory on
// the tree that lay below it, and it writes down the difference of two trees. It
// knows nothing of disks and of where objects are kept.
package layer

import (
	"context"
	"errors"
	"io"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/tree"
)

// Options says how Apply takes an upper directory. The zero value will do.
type Options struct {
	// Skip tells of paths that belong to the machine, as /etc/hostname: what the
	// parent has there stays, whatever the upper directory says. It may be nil.
	Skip func(path string) bool
	// Inspect returns where a copy of a new file's bytes goes as they are read, or
	// nil. It is called from several goroutines, each writer from one. It may be nil.
	Inspect func(path string) io.Writer
	// Check sees the attributes of each entry of the upper directory that is taken,
	// before its content is read; an error ends Apply. Only one goroutine calls it. It may be nil.
	Check func(path string, a *tree.Attr) error
	// MaxEntries bounds the entries that are taken; 0 is DefaultMaxEntries.
	MaxEntries int
	// MaxMeta bounds the bytes of names, link targets, extended attributes and
	// paths of hard links that are taken; 0 is DefaultMaxMeta.
	MaxMeta int64
	// Parallel is how many files are read at a time; 0 is one for each CPU.
	Parallel int
}

// What Apply takes at most unless Options says something else.
const (
	DefaultMaxEntries       = 8 << 20
	DefaultMaxMeta    int64 = 1 << 30
)

// Stats is a layer in figures. The counts are of paths.
type Stats struct {
	Added   int
	Changed int
	Removed int
	Bytes   int64 // of contents that were read
}

// Apply puts upper, the upper directory of an overlay as its file system has it, on
// the tree parent, and returns the tree that the overlay shows.
func Apply(ctx context.Context, w tree.Writer, parent tree.Ref, upper tree.Node, opts Options) (tree.Ref, Stats, error) {
	return tree.Ref{}, Stats{}, errors.New("not written yet")
}

// Encode writes the layer that leads from tree a to tree b. It writes nothing when they are the same.
func Encode(ctx context.Context, r tree.Getter, a, b tree.Ref, w io.Writer) error {
	return errors.New("not written yet")
}

// Digest returns the digest of what Encode writes, and "" when that is nothing.
func Digest(ctx context.Context, r tree.Getter, a, b tree.Ref) (turnstone.Digest, error) {
	return "", errors.New("not written yet")
}
