package layer

import (
	"context"
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
	files  chan *content       // from the walk to the readers of contents
	linked map[uint64]*content // by inode, for files with several names
	bytes  atomic.Int64        // of the contents
	stats  Stats

	entries int
	meta    int64

	// relinked contains the paths whose links have changed; true after they were counted.
	relinked map[string]bool
}

// A directory is a directory of the new tree.
type directory struct {
	entry tree.Entry
	old   *tree.Entry    // the parent's directory at this path, or nil
	same  bool           // its entries are the parent's, which were not read
	olds  tree.Directory // the entries of old
	items []item         // sorted by name
}

// An item is a name in a directory.
type item struct {
	entry tree.Entry
	file  *content   // for a file that was read
	dir   *directory // for a directory in the upper directory
	old   *tree.Entry
}

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
	return a.directory("", upper, tree.Entry{Attr: attr}, old, false, 0)
}

// directory plans a directory at path, which is "" for the top. old is the parent's directory at
// path, or nil; hidden means that old does not show through.
func (a *applier) directory(path string, n tree.Node, e tree.Entry, old *tree.Entry, hidden bool,
	depth int) (*directory, error) {
	if depth > tree.MaxDepth {
		return nil, exhausted(brief.Clip(path, 256),
			"directories that are nested more than %d deep", tree.MaxDepth)
	}
	d := &directory{entry: e, old: old}
	children, err := n.Children(a.ctx)
	if err != nil {
		return nil, err
	}
	if old != nil && !hidden && a.skipsAll(path, children) {
		d.same = true // such as /etc in every sandbox
		return d, nil
	}
	if old != nil {
		if d.olds, err = tree.GetDirectory(a.ctx, a.w, old.Tree); err != nil {
			return nil, err
		}
	}
	d.items = make([]item, 0, len(children)+len(d.olds))
	olds := d.olds
	for i, c := range children {
		if err := tree.CheckName(c.Name); err != nil {
			return nil, integrity(path+"/", "%w", err)
		}
		if i > 0 && c.Name <= children[i-1].Name {
			return nil, integrity(path+"/"+c.Name, "a duplicate name")
		}
		for len(olds) > 0 && olds[0].Name < c.Name {
			a.below(d, path, &olds[0], hidden)
			olds = olds[1:]
		}
		var oldChild *tree.Entry
		if len(olds) > 0 && olds[0].Name == c.Name {
			oldChild, olds = &olds[0], olds[1:]
		}
		if err := a.child(d, path+"/"+c.Name, c, oldChild, hidden, depth); err != nil {
			return nil, err
		}
	}
	for i := range olds {
		a.below(d, path, &olds[i], hidden)
	}
	return d, nil
}

// below plans an entry of the parent that the upper directory does not contain.
func (a *applier) below(d *directory, dir string, old *tree.Entry, hidden bool) {
	path := dir + "/" + old.Name
	if !hidden || a.skip(path) {
		d.items = append(d.items, item{entry: *old, old: old})
		return
	}
	a.links.hide(path)
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

// child plans an entry of the upper directory. old is the parent's entry, or nil.
func (a *applier) child(d *directory, path string, c tree.Child, old *tree.Entry,
	hidden bool, depth int) error {
	if err := a.ctx.Err(); err != nil {
		return context.Cause(a.ctx)
	}
	if a.skip(path) {
		if old != nil {
			d.items = append(d.items, item{entry: *old, old: old})
		}
		return nil
	}
	attr, err := c.Node.Attr()
	if err != nil {
		return err
	}
	// A socket has no meaning without its process, but it has replaced the earlier entry.
	if attr.Type == 0 || isWhiteout(&attr) {
		if old != nil {
			a.links.hide(path)
		}
		return nil
	}
	opaque, err := a.take(path, &attr)
	if err != nil {
		return err
	}
	it := item{entry: tree.Entry{Name: c.Name, Attr: attr}, old: old}
	if attr.Type != tree.Dir {
		if it.file, err = a.leaf(path, c.Node, &it); err == nil {
			d.items = append(d.items, it)
		}
		return err
	}
	var base *tree.Entry
	if old != nil && old.Type == tree.Dir {
		base = old
	} else if old != nil {
		a.links.hide(path)
	}
	if it.dir, err = a.directory(path, c.Node, it.entry, base,
		hidden || opaque, depth+1); err != nil {
		return err
	}
	// otherwise only the agent has created it
	if path != etc || old != nil || len(it.dir.items) > 0 {
		d.items = append(d.items, it)
	}
	return nil
}

// leaf plans an entry of the upper directory other than a directory, and starts reading a file's
// content.
func (a *applier) leaf(path string, n tree.Node, it *item) (*content, error) {
	if it.old != nil {
		a.links.hide(path)
	}
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

// take removes the overlay's attributes, and checks and counts the rest. opaque means that the
// overlay hides what is below the entry.
func (a *applier) take(path string, attr *tree.Attr) (opaque bool, err error) {
	for _, x := range attr.Xattrs {
		switch x.Name {
		case overlayRedirect, overlayMetacopy:
			// Such an entry's name or content is in another place. Sandboxes mount without these
			// features.
			return false, unsupported(path, "the overlay has the attribute %s", x.Name)
		case overlayOpaque:
			opaque = string(x.Value) == "y"
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
		return false, exhausted(path, "paths and attributes of more than %d bytes", a.opts.MaxMeta)
	}
	if a.entries > a.opts.MaxEntries {
		return false, exhausted(path, "more than %d changed files", a.opts.MaxEntries)
	}
	if most := a.opts.MaxFile; most > 0 && attr.Type == tree.File && attr.Size > most {
		return false, exhausted(path, "a file of more than %s", turnstone.Bytes(most).Human())
	}
	if a.opts.Check != nil {
		if err := a.opts.Check(path, attr); err != nil {
			return false, err
		}
	}
	return opaque, nil
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
