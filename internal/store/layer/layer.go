// Package layer computes a turn's changes: it applies an overlay's upper directory to the tree
// below, and encodes the difference of two trees. It is independent of disks and of the storage of
// objects. docs/layers.md describes the content of a layer.
package layer

import (
	"context"
	"io"
	"runtime"

	"golang.org/x/sync/errgroup"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Options configure Apply. The zero value is valid.
type Options struct {
	// Skip reports paths that belong to the machine, such as /etc/hostname: the parent's entry
	// stays, whatever the upper directory contains. It may be nil.
	Skip func(path string) bool
	// Inspect returns a writer for a copy of a new file's bytes, or nil. It is called from several
	// goroutines, once for each file with one of its paths; each writer is used by a single
	// goroutine. A writer's error ends Apply. Inspect may be nil.
	Inspect func(path string) io.Writer
	// Check is called for each used entry of the upper directory before its content is read; an
	// error ends Apply. Only a single goroutine calls it. It may be nil.
	Check func(path string, a *tree.Attr) error
	// MaxEntries bounds the number of entries; 0 is defaultMaxEntries.
	MaxEntries int
	// MaxMeta bounds the total bytes of paths, link targets and extended attributes; 0 is
	// defaultMaxMeta.
	MaxMeta int64
	// maxFile bounds the bytes of a file, including holes; 0 is no bound.
	MaxFile int64
	// Parallel is the number of files read concurrently; 0 is the number of CPUs.
	Parallel int
}

// Default limits of Apply.
const (
	defaultMaxEntries       = 8 << 20
	defaultMaxMeta    int64 = 1 << 30
)

// Stats summarizes a layer. The counts are of paths.
type Stats struct {
	Added   int
	Changed int
	Removed int
	Bytes   int64 // bytes of contents that were read
}

// Apply applies upper, the upper directory of an overlay as its file system contains it, to the
// tree parent, and returns the tree that the overlay shows. Unchanged copies in the upper directory
// have no effect: if it contains nothing else, Apply puts no object and returns parent.
//
// The error is of kind Integrity if upper is not the result of an overlay, Invalid if it contains
// unsupported features, and Exhausted if it exceeds the limits of Options; other errors are those
// of w and upper. Apply ends soon after ctx.
func Apply(ctx context.Context, w tree.Writer, parent turnstone.TreeRef, upper tree.Node,
	opts Options) (turnstone.TreeRef, Stats, error) {
	if opts.MaxEntries == 0 {
		opts.MaxEntries = defaultMaxEntries
	}
	if opts.MaxMeta == 0 {
		opts.MaxMeta = defaultMaxMeta
	}
	if opts.Parallel <= 0 {
		opts.Parallel = runtime.GOMAXPROCS(0)
	}
	root, err := tree.GetRoot(ctx, w, parent)
	if err != nil {
		return turnstone.TreeRef{}, Stats{}, err
	}
	g, walking := errgroup.WithContext(ctx)
	a := &applier{ctx: walking, w: w, opts: opts, links: newLinks(root.Links), root: &root.Entry,
		files: make(chan *content, 4*opts.Parallel), linked: map[uint64]*content{}, moved: map[string]bool{}}
	var plan *directory
	g.Go(func() (err error) {
		defer close(a.files)
		plan, err = a.top(&root.Entry, upper)
		return err
	})
	for range opts.Parallel { // a goroutine for each file takes twice the time for small ones
		g.Go(a.storeAll)
	}
	if err := g.Wait(); err != nil {
		return turnstone.TreeRef{}, Stats{}, err
	}
	a.ctx = ctx // that of g has ended
	return a.result(parent, root, plan)
}

// result creates the objects of the planned tree from the bottom up.
func (a *applier) result(parent turnstone.TreeRef, old *tree.Root,
	plan *directory) (turnstone.TreeRef, Stats, error) {
	groups := a.links.result()
	a.relinked = a.links.changed(groups)
	settle(plan)
	entry, err := a.finish("", plan)
	if err == nil {
		err = a.countBelow("", &old.Entry, &item{entry: entry, dir: plan})
	}
	if err != nil {
		return turnstone.TreeRef{}, Stats{}, err
	}
	a.countLinks()
	a.stats.Bytes = a.bytes.Load()
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
		WithHint("run the turn again without programs that write to the sandbox's disk directly")
}

func unsupported(path, format string, args ...any) error {
	return turnstone.Errorf("layer.apply", turnstone.KindInvalid, path, format, args...).
		WithHint("run the turn again without the program that changed the disk below its file " +
			"system")
}

func exhausted(path, format string, args ...any) error {
	return turnstone.Errorf("layer.apply", turnstone.KindExhausted, path, format, args...).
		WithHint("at the end of the turn, remove files that the next turn does not need, such as " +
			"caches and build results")
}
