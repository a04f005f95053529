package layer

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/store/tree"
)

// The extended attributes of an overlay's own metadata (the kernel's
// Documentation/filesystems/overlayfs.rst). They are not visible through the overlay.
const (
	overlayPrefix   = "trusted.overlay."
	overlayOpaque   = overlayPrefix + "opaque"
	overlayWhiteout = overlayPrefix + "whiteout"
	overlayRedirect = overlayPrefix + "redirect"
	overlayMetacopy = overlayPrefix + "metacopy"
)

// etc is, besides the top directory, the directory that the agent creates in the upper directory,
// for the files of the sandbox's identity.
const etc = "/etc"

type applier struct {
	ctx    context.Context // of the current Apply
	w      tree.Writer
	opts   Options
	links  *links
	root   *tree.Entry         // the parent's top directory
	files  chan *content       // from the walk to the readers of contents
	linked map[uint64]*content // by inode, for files with several names
	bytes  atomic.Int64        // of the contents
	stats  Stats

	entries int
	meta    int64
	moved   map[string]bool // directories of the parent that were renamed

	// relinked contains the paths whose links have changed; true after they were counted.
	relinked map[string]bool
}

// A directory is a directory of the new tree.
type directory struct {
	entry tree.Entry
	base  *tree.Entry    // the parent's directory that shows through it, or nil
	same  bool           // its entries are those of base, which were not read
	bases tree.Directory // the entries of base
	items []item         // sorted by name
}

// An item is a name in a directory.
type item struct {
	entry tree.Entry
	file  *content    // for a file that was read
	dir   *directory  // for a directory in the upper directory
	base  *tree.Entry // the parent's entry that it is or replaces, or nil
}

// A place is where a directory of the upper directory belongs. They differ after a rename of one of
// the parent's directories.
type place struct {
	path string         // in the new tree; "" for the top directory
	old  *tree.Entry    // the parent's directory with this path, or nil
	base *tree.Entry    // the parent's directory that shows through, or nil
	from string         // the path of base in the parent's tree
	move int            // the rename that base was last subject to; see links
	olds tree.Directory // the entries of old, if something needs them
}

func (p *place) child(name string) string { return p.path + "/" + name }

// hide records that an entry of base does not show through.
func (a *applier) hide(p *place, name string) { a.links.hide(p.from+"/"+name, p.move) }

// top plans the top directory.
func (a *applier) top(old *tree.Entry, upper tree.Node) (*directory, error) {
	attr, err := upper.Attr()
	if err != nil {
		return nil, err
	}
	if attr.Type != tree.Dir {
		return nil, integrity("/", "the upper directory is not a directory")
	}
	if _, err := a.take("/", &attr); err != nil { // Linux ignores opaque on the top directory
		return nil, err
	}
	return a.directory(place{old: old, base: old}, upper, tree.Entry{Attr: attr}, 0)
}

// directory plans a directory.
func (a *applier) directory(p place, n tree.Node, e tree.Entry, depth int) (*directory, error) {
	if depth > tree.MaxDepth {
		return nil, exhausted(brief.Clip(p.path, 256),
			"directories that are nested more than %d deep", tree.MaxDepth)
	}
	d := &directory{entry: e, base: p.base}
	children, err := n.Children(a.ctx)
	if err != nil {
		return nil, err
	}
	if p.base != nil && p.base == p.old && a.skipsAll(p.path, children) {
		d.same = true // such as /etc in every sandbox
		return d, nil
	}
	if p.base != nil {
		if d.bases, err = tree.GetDirectory(a.ctx, a.w, p.base.Tree); err != nil {
			return nil, err
		}
	}
	shown, err := a.withOwn(&p, d.bases)
	if err != nil {
		return nil, err
	}
	d.items = make([]item, 0, len(children)+len(shown))
	for i, c := range children {
		if err := tree.CheckName(c.Name); err != nil {
			return nil, integrity(p.path+"/", "%w", err)
		}
		if i > 0 && c.Name <= children[i-1].Name {
			return nil, integrity(p.child(c.Name), "a duplicate name")
		}
		for len(shown) > 0 && shown[0].Name < c.Name {
			d.items = append(d.items, item{entry: shown[0], base: &shown[0]})
			shown = shown[1:]
		}
		var base *tree.Entry
		if len(shown) > 0 && shown[0].Name == c.Name {
			base, shown = &shown[0], shown[1:]
		}
		if err := a.child(d, &p, c, base, depth); err != nil {
			return nil, err
		}
	}
	for i := range shown {
		d.items = append(d.items, item{entry: shown[i], base: &shown[i]})
	}
	return d, nil
}

// withOwn returns the entries that show through a directory: those of its base, and the parent's
// entries at its path that belong to the machine.
func (a *applier) withOwn(p *place, bases tree.Directory) (tree.Directory, error) {
	if p.olds = bases; p.old == p.base || a.opts.Skip == nil {
		return bases, nil
	}
	p.olds = nil
	if p.old == nil {
		return bases, nil
	}
	var err error
	if p.olds, err = tree.GetDirectory(a.ctx, a.w, p.old.Tree); err != nil {
		return nil, err
	}
	shown := slices.Clone(bases)
	for i := range p.olds {
		if !a.skip(p.child(p.olds[i].Name)) {
			continue
		}
		if at, found := find(shown, p.olds[i].Name); found {
			a.hide(p, p.olds[i].Name)
			shown[at] = p.olds[i]
		} else {
			shown = slices.Insert(shown, at, p.olds[i])
		}
	}
	return shown, nil
}

// find returns the position of a name, or where it belongs.
func find(d tree.Directory, name string) (int, bool) {
	return slices.BinarySearchFunc(d, name, func(e tree.Entry, name string) int {
		return strings.Compare(e.Name, name)
	})
}

// directoryIn returns the directory called name, or nil.
func directoryIn(d tree.Directory, name string) *tree.Entry {
	if i, found := find(d, name); found && d[i].Type == tree.Dir {
		return &d[i]
	}
	return nil
}

func (a *applier) skip(path string) bool { return a.opts.Skip != nil && a.opts.Skip(path) }

// skipsAll reports whether all of a directory's entries belong to the machine.
func (a *applier) skipsAll(path string, children []tree.Child) bool {
	for _, c := range children {
		if !a.skip(path + "/" + c.Name) {
			return false
		}
	}
	return true
}

// child plans an entry of the upper directory, in the directory d at p. base is the entry that it
// hides or is merged with, or nil.
func (a *applier) child(d *directory, p *place, c tree.Child, base *tree.Entry, depth int) error {
	if err := a.ctx.Err(); err != nil {
		return context.Cause(a.ctx)
	}
	path := p.child(c.Name)
	if a.skip(path) {
		if base != nil {
			d.items = append(d.items, item{entry: *base, base: base})
		}
		return nil
	}
	attr, err := c.Node.Attr()
	if err != nil {
		return err
	}
	// A socket has no meaning without its process, but it has replaced the earlier entry.
	if attr.Type == 0 || isWhiteout(&attr) {
		if base != nil {
			a.hide(p, c.Name)
		}
		return nil
	}
	what, err := a.take(path, &attr)
	if err != nil {
		return err
	}
	it := item{entry: tree.Entry{Name: c.Name, Attr: attr}, base: base}
	if attr.Type != tree.Dir {
		if base != nil {
			a.hide(p, c.Name)
		}
		if it.file, err = a.leaf(path, c.Node, &it); err == nil {
			d.items = append(d.items, it)
		}
		return err
	}
	at, err := a.place(d, p, c.Name, base, what)
	if err != nil {
		return err
	}
	if it.dir, err = a.directory(at, c.Node, it.entry, depth+1); err != nil {
		return err
	}
	// otherwise only the agent has created it
	if path != etc || base != nil || len(it.dir.items) > 0 {
		d.items = append(d.items, it)
	}
	return nil
}

// place returns where the subdirectory name of the directory d at p belongs.
func (a *applier) place(d *directory, p *place, name string, base *tree.Entry, what overlaid) (
	place, error) {
	at := place{path: p.child(name), from: p.from + "/" + name, move: p.move,
		old: directoryIn(p.olds, name)}
	plain := !what.opaque && what.redirect == ""
	if plain {
		at.base = directoryIn(d.bases, name)
	}
	if base != nil && at.base == nil {
		a.hide(p, name)
	}
	if plain || what.opaque {
		return at, nil
	}
	var err error
	if at.base, at.from, err = a.redirected(d, p, what.redirect); err != nil || at.base == nil {
		return at, err
	}
	if a.moved[at.from] { // which would be many copies of a large directory, for one entry each
		return at, integrity(at.path, "the second directory that was renamed from %.100q", at.from)
	}
	a.moved[at.from] = true
	at.move = a.links.move(at.from, at.path)
	return at, nil
}

// redirected returns the parent's directory that a directory of d was before its rename: redirect is
// a name in the directory that shows through d, or an absolute path. It returns nil if there is no
// such directory.
func (a *applier) redirected(d *directory, p *place, redirect string) (*tree.Entry, string, error) {
	if redirect[0] != '/' {
		if tree.CheckName(redirect) != nil {
			return nil, "", integrity(p.path+"/", "a directory that was renamed from %.100q", redirect)
		}
		return directoryIn(d.bases, redirect), p.from + "/" + redirect, nil
	}
	at := a.root
	for name := range strings.SplitSeq(redirect[1:], "/") {
		if tree.CheckName(name) != nil {
			return nil, "", integrity(p.path+"/", "a directory that was renamed from %.100q", redirect)
		}
		entries, err := tree.GetDirectory(a.ctx, a.w, at.Tree)
		if err != nil {
			return nil, "", err
		}
		if at = directoryIn(entries, name); at == nil {
			break
		}
	}
	return at, redirect, nil
}

// leaf plans an entry of the upper directory other than a directory, and starts reading a file's
// content.
func (a *applier) leaf(path string, n tree.Node, it *item) (*content, error) {
	ino, names := n.Inode()
	if names > 1 {
		if a.meta += int64(len(path)); a.meta > a.opts.MaxMeta {
			return nil, exhausted(path,
				"hard links with more than %d bytes of paths", a.opts.MaxMeta)
		}
		a.links.add(ino, path)
	}
	if it.entry.Type != tree.File {
		return nil, nil
	}
	return a.read(path, n, ino, names, it.entry.Size), nil
}

// overlaid is what the attributes of an overlay say of a directory.
type overlaid struct {
	opaque   bool   // it hides the directory below
	redirect string // where the directory below was before it was renamed; or empty
}

// take removes the overlay's attributes, and checks and counts the rest.
func (a *applier) take(path string, attr *tree.Attr) (what overlaid, err error) {
	for _, x := range attr.Xattrs {
		switch x.Name {
		case overlayMetacopy:
			// Such a file's content is in another place. Sandboxes mount without this feature.
			return what, unsupported(path, "the overlay has the attribute %s", x.Name)
		case overlayRedirect:
			if attr.Type != tree.Dir {
				return what, unsupported(path, "the overlay has the attribute %s", x.Name)
			}
			what.redirect = string(x.Value)
		case overlayOpaque:
			what.opaque = string(x.Value) == "y"
		}
	}
	attr.Normalize() // removes all overlay attributes
	// for the whole path, because building the path costs time
	size := int64(len(attr.Target) + len(path))
	for _, x := range attr.Xattrs {
		size += int64(len(x.Name) + len(x.Value))
	}
	a.entries++
	if a.meta += size; a.meta > a.opts.MaxMeta {
		return what, exhausted(path, "paths and attributes of more than %d bytes", a.opts.MaxMeta)
	}
	if a.entries > a.opts.MaxEntries {
		return what, exhausted(path, "more than %d changed files", a.opts.MaxEntries)
	}
	if most := a.opts.MaxFile; most > 0 && attr.Type == tree.File && attr.Size > most {
		return what, exhausted(path, "a file of more than %s", turnstone.Bytes(most).Human())
	}
	if a.opts.Check != nil {
		if err := a.opts.Check(path, attr); err != nil {
			return what, err
		}
	}
	return what, nil
}

// isWhiteout reports whether an entry of the upper directory marks a deletion: a device 0/0, or,
// where devices are not available, an empty file with an attribute.
func isWhiteout(a *tree.Attr) bool {
	switch a.Type {
	case tree.Char:
		return a.Major == 0 && a.Minor == 0
	case tree.File:
		if a.Size != 0 {
			return false
		}
		for _, x := range a.Xattrs {
			if x.Name == overlayWhiteout {
				return true
			}
		}
	}
	return false
}
