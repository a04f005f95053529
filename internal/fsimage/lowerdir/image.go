// Package lowerdir makes the read-only images of which a turn's root file system is stacked. An
// image is EROFS. It contains the difference between two trees in the form of an overlay's lower
// directory, and the files that its turns add to /context:
//
//	fs/       the difference: additions and changes, whiteouts, opaque directories
//	context/  index.md and turns/<n>/…
//
// Images are a cache. Their names depend on their content, the first process that needs an image
// makes it, images are merged to keep stacks short, and removed when they use too much space.
package lowerdir

import (
	"context"
	"iter"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/substrate"
)

// A File is an additional file of an image, below its directory context.
type File struct {
	Path    string            // relative to /context, such as "turns/3/receipt.md"
	Content turnstone.Content // the file's bytes; if empty, they are Data
	Data    []byte
	MTime   tree.Time
}

// An Item is a turn of a history.
type Item struct {
	Key    turnstone.Digest  // digest of the turn's record, which identifies everything else
	Number int               // in its session
	Tree   turnstone.TreeRef // the turn's resulting files
	// Side means that the turn arrived by a merge: its files are part of the merge's files, and the
	// items that follow are not its own history.
	Side bool
	// Line is the turn's entry in /context/index.md: a line without "- ". An item without a line is
	// a layer of the template and not in the index.
	Line string
	// Context returns the turn's additions to /context: files below turns/<n>/.
	Context func(ctx context.Context) ([]File, error)
}

// A History yields a state's turns, newest first, and ends with the session's first turn. The items
// after a turn that is not Side are that turn's own history. It is read on demand.
type History = iter.Seq2[Item, error]

// Options of a Cache. Zero values are the defaults.
type Options struct {
	Budget   turnstone.Bytes // limit for all images; default a quarter of the disk, at least 8 GiB
	MaxStack int             // images per stack; default and maximum substrate.MaxLayers
}

// A Cache keeps images in a folder:
//
//	images/<key>       an image
//	images/<key>.json  its sidecar with the expected state; its time: last use
//	plans/<key>.json   the stack of a state
//	locks/<key>.lock   held while an image is made
//
// Its methods are safe for concurrent use, also by several processes.
type Cache struct {
	dir  string
	r    tree.Reader
	opts Options
}

// New returns the cache in dir, which may not exist yet. It reads trees and contents from r.
func New(dir string, r tree.Reader, opts Options) *Cache {
	if opts.MaxStack <= 0 || opts.MaxStack > substrate.MaxLayers {
		opts.MaxStack = substrate.MaxLayers
	}
	return &Cache{dir: dir, r: r, opts: opts}
}
