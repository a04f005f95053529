// Package layer knows what a turn changed: it puts an overlay's upper directory on
// the tree that lay below it, and it writes down the difference of two trees. It
// knows nothing of disks and of where objects are kept. docs/layers.md says what a
// layer holds.
package layer

import (
	"context"
	"io"
	"runtime"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options says how Apply takes an upper directory. The zero value will do.
type Options struct {
	// Skip tells of paths that belong to the machine, as /etc/hostname: what the
	// parent has there stays, whatever the upper directory says. It may be nil.
	Skip func(path string) bool
	// Inspect returns where a copy of a new file's bytes goes as they are read, or
	// nil. It is called from several goroutines, once for each file and with one of
	// its paths; each writer is used by one goroutine. What a writer returns as an
	// error ends Apply. It may be nil.
	Inspect func(path string) io.Writer
	// Check sees each entry of the upper directory that is taken, before its
	// content is read; an error ends Apply. Only one goroutine calls it. It may be nil.
	Check func(path string, a *tree.Attr) error
	// MaxEntries bounds the entries that are taken; 0 is DefaultMaxEntries.
	MaxEntries int
	// MaxMeta bounds the bytes of paths, link targets and extended attributes that
	// are taken; 0 is DefaultMaxMeta.
	MaxMeta int64
	// MaxFile bounds the bytes of one file, holes included; 0 is no bound.
	MaxFile int64
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
// the tree parent, and returns the tree that the overlay shows. What the upper
// directory has copies of, unchanged, makes no difference: with nothing else in it,
// Apply puts no object and returns parent.
//
// An error is of kind Integrity when upper is not what an overlay makes, Invalid
// when it has what is not read here, Exhausted when it is more than Options allows;
// others are those of w and upper. When ctx ends, Apply does soon.
func Apply(ctx context.Context, w tree.Writer, parent tree.Ref, upper tree.Node, opts Options) (tree.Ref, Stats, error) {
	if opts.MaxEntries == 0 {
		opts.MaxEntries = DefaultMaxEntries
	}
	if opts.MaxMeta == 0 {
		opts.MaxMeta = DefaultMaxMeta
	}
	if opts.Parallel <= 0 {
		opts.Parallel = runtime.GOMAXPROCS(0)
	}
	root, err := tree.GetRoot(ctx, w, parent)
	if err != nil {
		return tree.Ref{}, Stats{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &applier{ctx: ctx, w: w, opts: opts, links: newLinks(root.Links), files: newReaders(ctx, cancel, w, opts)}
	plan, err := a.top(&root.Entry, upper)
	if err != nil {
		cancel(err)
	}
	if ferr := a.files.wait(); ferr != nil {
		err = ferr // the first cause; what the walk says may only follow from it
	}
	if err != nil {
		return tree.Ref{}, Stats{}, err
	}
	return a.result(parent, root, plan)
}

// result makes the objects of what was planned, from the bottom up.
func (a *applier) result(parent tree.Ref, old *tree.Root, plan *directory) (tree.Ref, Stats, error) {
	groups := a.links.result()
	a.relinked = a.links.changed(groups)
	entry, err := a.finish("", plan)
	if err != nil {
		return tree.Ref{}, Stats{}, err
	}
	a.countLinks()
	a.stats.Bytes = a.files.bytes.Load()
	if equal(&entry, &old.Entry) && len(a.relinked) == 0 {
		return parent, a.stats, nil
	}
	if !entry.Attr.Equal(&old.Attr) {
		a.count(&a.stats.Changed, "/")
	}
	ref, err := tree.PutRoot(a.ctx, a.w, &tree.Root{Entry: entry, Links: groups})
	return ref, a.stats, err
}

func integrity(path, format string, args ...any) error {
	return turnstone.Errorf("layer.apply", turnstone.KindIntegrity, path, format, args...).
		WithHint("what the sandbox left on its disk is not what an overlay makes, so it cannot be kept")
}

func unsupported(path, format string, args ...any) error {
	return turnstone.Errorf("layer.apply", turnstone.KindInvalid, path, format, args...).
		WithHint("something in the sandbox changed the disk below its file system; run the turn again without it")
}

func exhausted(path, format string, args ...any) error {
	return turnstone.Errorf("layer.apply", turnstone.KindExhausted, path, format, args...).
		WithHint("remove what the next turn does not need, as caches and build results, at the end of the turn")
}
