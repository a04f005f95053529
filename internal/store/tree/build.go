package tree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"turnstone.dev/turnstone"
)

// BuildOptions configure Build.
type BuildOptions struct {
	// Skip reports absolute paths to omit, with everything below. It may be nil; only a single
	// goroutine calls it.
	Skip func(path string) bool
	// Adjust may change a file's attributes, such as its owner. It may be nil; only a single
	// goroutine calls it.
	Adjust func(a *Attr)
	// Counts is filled if it is not nil; read it after Build.
	Counts *Counts
	// Parallel is the number of files read concurrently; 0 is the number of CPUs.
	Parallel int
}

// Counts summarizes the content of a tree.
type Counts struct {
	Dirs     int   `json:"directories"` // including the top directory
	Files    int   `json:"files"`       // names of regular files
	Symlinks int   `json:"symlinks"`
	Others   int   `json:"others"`     // devices and FIFOs
	Links    int   `json:"hard_links"` // additional names of files
	Skipped  int   `json:"skipped"`    // sockets, and paths of Skip
	Bytes    int64 `json:"bytes"`      // of files, each counted once
}

// Build puts the whole tree of root and returns it. It omits Nodes of type 0, such as sockets. It
// reads files concurrently; its memory is bounded by the directories in progress and the files with
// several names.
//
// A tree that no file system can contain (a duplicate name, a directory inside itself, more than
// MaxDepth nested directories) is an error of kind Invalid with the path, and so is a file whose
// size differs from its Node's. Other errors are those of the nodes and of w.
func Build(ctx context.Context, w Writer, root Node, opts BuildOptions) (turnstone.TreeRef, error) {
	if opts.Parallel <= 0 {
		opts.Parallel = runtime.GOMAXPROCS(0)
	}
	if opts.Counts == nil {
		opts.Counts = &Counts{}
	}
	*opts.Counts = Counts{}
	g, walking := errgroup.WithContext(ctx)
	b := &build{ctx: walking, files: make(chan job, 4*opts.Parallel), w: w, opts: opts,
		links: map[uint64]*linked{}, dirs: map[uint64]bool{}}
	top := &frame{entries: make(Directory, 1)}
	top.pending.Store(2) // the directory, and this function
	g.Go(func() error {
		defer close(b.files)
		return b.top(top, root)
	})
	for range opts.Parallel { // a goroutine for each file takes twice the time for small ones
		g.Go(b.readAll)
	}
	if err := cmp.Or(g.Wait(), ctx.Err()); err != nil {
		return turnstone.TreeRef{}, canceled(err)
	}
	r := &Root{Entry: top.entries[0], Links: b.groups()}
	return PutRoot(ctx, w, r)
}

type build struct {
	ctx   context.Context // of the walk and the readers
	files chan job        // from the walk to the readers
	w     Writer
	opts  BuildOptions

	// Only the walking goroutine uses these.
	links map[uint64]*linked // files with several names, by inode
	dirs  map[uint64]bool    // directories, by inode
}

// A frame is a directory in progress. The goroutine that decrements pending to 0 puts the
// directory.
type frame struct {
	parent  *frame
	index   int // index of its entry in the parent
	entries Directory
	pending atomic.Int64 // incomplete entries, and the walk through the directory
}

// A job is a file to read.
type job struct {
	at   place
	node Node
	link *linked // nil if the file has a single name
}

type place struct {
	f     *frame
	index int
}

func (p place) entry() *Entry { return &p.f.entries[p.index] }

// path returns the path of p, built on demand.
func (p place) path() string {
	var names []string
	for f, i := p.f, p.index; f.parent != nil; f, i = f.parent, f.index {
		names = append(names, f.entries[i].Name)
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/")
}

// A linked is a file with several names. The first name is read; the others wait for it.
type linked struct {
	paths []string // only the walk uses them

	mu      sync.Mutex
	done    bool
	entry   Entry
	waiting []place
}

// canceled returns the error that ended the build, with a kind for that of a context.
func canceled(err error) error {
	var typed *turnstone.Error
	if !errors.As(err, &typed) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return turnstone.NewError("tree.build", turnstone.KindCanceled, "", err)
	}
	return err
}

func (b *build) fail(p place, err error) error {
	var typed *turnstone.Error
	if errors.As(err, &typed) {
		return err
	}
	return turnstone.NewError("tree.build", turnstone.KindUnavailable, p.path(), err)
}

func (b *build) invalid(p place, err error) error {
	return turnstone.NewError("tree.build", turnstone.KindInvalid, p.path(), err).
		WithHint("check the file system for damage, and change no file while the tree is built")
}

func (b *build) top(top *frame, root Node) error {
	at := place{top, 0}
	a, err := b.attr(root)
	if err != nil {
		return b.fail(at, err)
	}
	if a.Type != Dir {
		return b.invalid(at, errors.New("is not a directory"))
	}
	top.entries[0].Attr = a
	return b.directory(at, root, 0)
}

func (b *build) attr(n Node) (Attr, error) {
	a, err := n.Attr()
	if err != nil {
		return Attr{}, err
	}
	a.Normalize()
	if b.opts.Adjust != nil && a.Type != 0 {
		b.opts.Adjust(&a)
	}
	return a, nil
}

// directory walks the directory of at.
func (b *build) directory(at place, n Node, depth int) error {
	b.opts.Counts.Dirs++
	if depth > MaxDepth {
		return b.invalid(at, fmt.Errorf("is more than %d directories deep", MaxDepth))
	}
	id, _ := n.Inode()
	if b.dirs[id] {
		return b.invalid(at, errors.New("is a directory with two paths, or inside itself"))
	}
	b.dirs[id] = true
	children, err := n.Children(b.ctx)
	if err != nil {
		return b.fail(at, err)
	}
	f, nodes, err := b.entries(at, children)
	if err != nil {
		return err
	}
	f.pending.Store(int64(len(f.entries)) + 1)
	for i := range f.entries {
		if err := b.entry(place{f, i}, nodes[i], depth); err != nil {
			return err
		}
	}
	return b.complete(f)
}

// entries returns a frame of the children that are not omitted.
func (b *build) entries(at place, children []Child) (*frame, []Node, error) {
	f := &frame{parent: at.f, index: at.index, entries: make(Directory, 0, len(children))}
	byName := func(x, y Child) int { return strings.Compare(x.Name, y.Name) }
	if !slices.IsSortedFunc(children, byName) {
		children = slices.SortedStableFunc(slices.Values(children), byName)
	}
	nodes := make([]Node, 0, len(children))
	dir := ""
	if b.opts.Skip != nil {
		dir = strings.TrimSuffix(at.path(), "/")
	}
	for i, c := range children {
		if err := CheckName(c.Name); err != nil {
			return nil, nil, b.invalid(at, err)
		}
		if i > 0 && c.Name == children[i-1].Name {
			return nil, nil, b.invalid(at, fmt.Errorf("has two entries with the name %q", c.Name))
		}
		if b.opts.Skip != nil && b.opts.Skip(dir+"/"+c.Name) {
			b.opts.Counts.Skipped++
			continue
		}
		a, err := b.attr(c.Node)
		if err != nil {
			return nil, nil, b.fail(at, fmt.Errorf("%q: %w", c.Name, err))
		}
		if a.Type == 0 {
			b.opts.Counts.Skipped++
			continue
		}
		f.entries = append(f.entries, Entry{Name: c.Name, Attr: a,
			Content: turnstone.Content{Size: a.Size}})
		nodes = append(nodes, c.Node)
	}
	return f, nodes, nil
}

// entry begins an entry of a directory.
func (b *build) entry(at place, n Node, depth int) error {
	e := at.entry()
	if err := e.checkFields(); err != nil {
		return b.invalid(at, err)
	}
	switch e.Type {
	case Dir:
		return b.directory(at, n, depth+1)
	case File:
		b.opts.Counts.Files++
	case Symlink:
		b.opts.Counts.Symlinks++
	default:
		b.opts.Counts.Others++
	}
	link, first := b.link(at, n)
	if !first {
		b.opts.Counts.Links++
		return b.wait(at, link)
	}
	b.opts.Counts.Bytes += e.Size
	if e.Type != File {
		return b.ready(job{at, n, link})
	}
	select {
	case b.files <- job{at, n, link}:
	case <-b.ctx.Done():
	}
	return b.ctx.Err()
}

// link records a name of a file with several names, and reports whether it is the first.
func (b *build) link(at place, n Node) (link *linked, first bool) {
	id, names := n.Inode()
	if names < 2 {
		return nil, true
	}
	link = b.links[id]
	if link == nil {
		link, first = &linked{}, true
		b.links[id] = link
	}
	link.paths = append(link.paths, at.path())
	return link, first
}

// wait completes at when link's first name is complete.
func (b *build) wait(at place, link *linked) error {
	link.mu.Lock()
	done := link.done
	if !done {
		link.waiting = append(link.waiting, at)
	}
	link.mu.Unlock()
	if !done {
		return nil
	}
	return b.same(at, link)
}

func (b *build) same(at place, link *linked) error {
	e := at.entry()
	name := e.Name
	*e = link.entry
	e.Name = name
	return b.complete(at.f)
}

// ready completes an entry, and the entries that waited for it.
func (b *build) ready(j job) error {
	if j.link != nil {
		j.link.mu.Lock()
		j.link.entry, j.link.done = *j.at.entry(), true
		waiting := j.link.waiting
		j.link.waiting = nil
		j.link.mu.Unlock()
		for _, at := range waiting {
			if err := b.same(at, j.link); err != nil {
				return err
			}
		}
	}
	return b.complete(j.at.f)
}

// complete counts another complete entry of f, and puts f after the last entry.
func (b *build) complete(f *frame) error {
	for f.pending.Add(-1) == 0 {
		at := place{f.parent, f.index}
		e := at.entry()
		var err error
		if e.Tree, e.Hash, err = PutDirectory(b.ctx, b.w, f.entries); err != nil {
			return b.fail(at, err)
		}
		f = f.parent
	}
	return nil
}

// readAll reads files until there are no more, or an error.
func (b *build) readAll() error {
	for j := range b.files {
		if err := b.read(j); err != nil {
			return err
		}
	}
	return nil
}

func (b *build) read(j job) error {
	e := j.at.entry()
	r, err := j.node.Open()
	if err != nil {
		return b.fail(j.at, err)
	}
	content, err := b.w.PutContent(b.ctx, &exactly{r: r, left: e.Size}, e.Size)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if errors.Is(err, errSize) {
		return b.invalid(j.at, err)
	}
	if err == nil && content.Size != e.Size {
		err = fmt.Errorf("%d of %d bytes were kept", content.Size, e.Size)
	}
	if err != nil {
		return b.fail(j.at, err)
	}
	e.Content = content
	return b.ready(j)
}

// groups returns the files with several names in the tree.
func (b *build) groups() []LinkGroup {
	var groups []LinkGroup
	for _, l := range b.links {
		if len(l.paths) > 1 {
			slices.Sort(l.paths)
			groups = append(groups, l.paths)
		}
	}
	slices.SortFunc(groups, func(x, y LinkGroup) int { return strings.Compare(x[0], y[0]) })
	return groups
}

var errSize = errors.New("its size changed while it was read")

// exactly reads r, which must end after left bytes.
type exactly struct {
	r    io.Reader
	left int64
}

// Source returns the reader from the Node's Open, for a Writer that knows its Nodes.
func (x *exactly) Source() io.Reader { return x.r }

// Read implements io.Reader.
func (x *exactly) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if x.left == 0 {
		var one [1]byte
		n, err := io.ReadFull(x.r, one[:])
		switch {
		case n > 0:
			return 0, errSize
		case err != io.EOF: //nolint:errorlint // ReadFull returns it as it is
			return 0, err
		}
		return 0, io.EOF
	}
	n, err := x.r.Read(p[:min(int64(len(p)), x.left)])
	x.left -= int64(n)
	if x.left > 0 && errors.Is(err, io.EOF) {
		return n, errSize
	}
	if errors.Is(err, io.EOF) {
		err = nil // the next call reports it if nothing follows
	}
	return n, err
}
