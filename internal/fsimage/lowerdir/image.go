// Package lowerdir makes the read-only images that a turn's root file system is
// stacked from. An image is EROFS and holds the difference between two trees, as
// an overlay's lower directory, and what the turns that it spans add to /context:
//
//	fs/       the difference: what was added or changed, whiteouts, opaque directories
//	context/  index.md and turns/<n>/…
//
// Images are a cache. They are named by what they hold, made by whoever needs them
// first, merged so that a stack stays short, and removed when they take up too
// much room.
package lowerdir

import (
	"context"
	"iter"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/substrate"
)

// A File is one more file of an image, below its directory context.
type File struct {
	Path    string       // relative to /context, as "turns/3/receipt.md"
	Content tree.Content // its bytes; when it names nothing, they are Data
	Data    []byte
	MTime   tree.Time
}

// An Item is one turn of a history.
type Item struct {
	Key    turnstone.Digest // of the turn's record: it names all the rest
	Number int              // in its session
	Tree   tree.Ref         // the files that the turn left
	// Side says that the turn came by a merge: its files are in the merge's, and
	// what follows is not its own history.
	Side bool
	// Line is the turn's entry in /context/index.md: one line, without "- ". An item
	// without one is no turn, and not in it: a layer of the template.
	Line string
	// Context returns what the turn adds to /context: files below turns/<n>/.
	Context func(ctx context.Context) ([]File, error)
}

// A History yields a state's turns, the newest first, and ends with the session's
// first. What follows a turn that is not Side is that turn's own history. It is
// walked no further than is needed.
type History = iter.Seq2[Item, error]

// Options of a Cache. Zero values are the defaults.
type Options struct {
	Budget   turnstone.Bytes // what all images may take up; default a quarter of the disk, at least 8 GiB
	MaxStack int             // images in one stack; default and most substrate.MaxLayers
}

// A Cache keeps images in one folder:
//
//	images/<key>       an image
//	images/<key>.json  what it looked like when it was whole; used last: its time
//	plans/<key>.json   the stack of a state
//	locks/<key>.lock   held while an image is made
//
// Its methods are safe for concurrent use, also by several processes.
type Cache struct {
	dir  string
	r    tree.Reader
	opts Options
}

// New returns the cache in dir, which need not exist yet. It reads trees and
// contents from r.
func New(dir string, r tree.Reader, opts Options) *Cache {
	if opts.MaxStack <= 0 || opts.MaxStack > substrate.MaxLayers {
		opts.MaxStack = substrate.MaxLayers
	}
	return &Cache{dir: dir, r: r, opts: opts}
}
