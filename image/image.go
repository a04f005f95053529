// Package image makes the read-only images that a turn's root file system is
// stacked from. An image is EROFS and holds the difference between two trees, as
// an overlay's lower directory, and what the turns that it spans add to /context:
//
//	fs/       the difference: what was added or changed, whiteouts, opaque directories
//	context/  index.md and turns/<n>/…
//
// Images are a cache. They are named by what they hold, made by whoever needs them
// first, merged so that a stack stays short, and removed when they take up too
// much room.
package image

import (
	"context"
	"errors"
	"iter"
	"os"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/tree"
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
	// Line is the turn's entry in /context/index.md: one line, without "- ".
	Line string
	// Context returns what the turn adds to /context: files below turns/<n>/.
	Context func(ctx context.Context) ([]File, error)
}

// A History yields a state's turns, the newest first, and ends with the session's
// first. It is walked no further than is needed.
type History = iter.Seq2[Item, error]

// Options of a Cache. Zero values are the defaults.
type Options struct {
	Budget   turnstone.Bytes // what all images may take up on disk; default 8 GiB
	MaxStack int             // images in one stack; default substrate.MaxLayers
}

// Write writes the image of the difference between two trees to f, which must be
// empty. The zero Ref is the empty tree. The same input gives the same bytes.
func Write(ctx context.Context, r tree.Reader, from, to tree.Ref, extra []File, f *os.File) error {
	return errors.ErrUnsupported
}

// A Cache keeps images in one folder. Its methods are safe for concurrent use,
// also by several processes.
type Cache struct {
	dir  string
	r    tree.Reader
	opts Options
}

// New returns the cache in dir, which need not exist yet.
func New(dir string, r tree.Reader, opts Options) *Cache { return &Cache{dir: dir, r: r, opts: opts} }

// Stack returns the paths of the images, the lowest first, that over the template
// whose tree is base give the tree of history's newest turn, and /context of all
// of its turns. They stay until release is called. An empty history needs none.
func (c *Cache) Stack(ctx context.Context, base tree.Ref, history History) (paths []string, release func(), err error) {
	return nil, nil, errors.ErrUnsupported
}

// Flatten makes what Stack would have to make for history, and merges images
// before a stack gets too deep. It is for the background, after a turn.
func (c *Cache) Flatten(ctx context.Context, base tree.Ref, history History) error {
	return errors.ErrUnsupported
}
