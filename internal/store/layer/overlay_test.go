package layer_test

import (
	"slices"

	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// An overlay is a model of the kernel's overlay: writes go to an upper directory, and the merged
// view is kept beside it as a plain tree.
type overlay struct {
	root  *merged
	clock int64
	inos  uint64
}

// A merged is a file that is visible through the overlay.
type merged struct {
	attr     tree.Attr
	data     []byte
	children map[string]*merged
	upper    bool    // it is in the upper directory
	lower    *merged // for a directory: the original directory of the lower tree that shows through
	path     string  // of lower
	moved    bool    // for a directory with lower
	ino      uint64
}

func newOverlay() *overlay {
	o := &overlay{}
	o.root = o.node(tree.Dir, "")
	return o
}

func (o *overlay) node(typ tree.Type, data string) *merged {
	o.clock++
	o.inos++
	n := &merged{attr: tree.Attr{Type: typ, Mode: 0o644,
		MTime: tree.Time{Sec: 1700000000 + o.clock, Nsec: int32(o.clock)}}, data: []byte(data),
		upper: true, ino: o.inos}
	if typ == tree.Dir {
		n.attr.Mode, n.children = 0o755, map[string]*merged{}
	}
	return n
}

// settle makes the current view the lower tree of an empty upper directory.
func (o *overlay) settle() {
	seen := map[*merged]*merged{}
	var frozen func(n *merged, path string) *merged
	frozen = func(n *merged, path string) *merged {
		if c := seen[n]; c != nil {
			return c
		}
		n.upper, n.moved, n.path = false, false, path
		c := *n
		seen[n] = &c
		if n.children != nil {
			c.children = map[string]*merged{}
			for name, child := range n.children {
				c.children[name] = frozen(child, path+"/"+name)
			}
			n.lower = &c
		}
		return &c
	}
	frozen(o.root, "")
	o.root.upper = true
}

// dir returns the directory at path; with up it copies the directory and its parents up.
func (o *overlay) dir(path []string, up bool) *merged {
	n := o.root
	for _, name := range path {
		if n = n.children[name]; n == nil || n.attr.Type != tree.Dir {
			return nil
		}
		n.upper = n.upper || up
	}
	return n
}

// touch records that a directory has gained or lost an entry. The top directory keeps its time
// because Apply has a special rule for it.
func (o *overlay) touch(d *merged) {
	if o.clock++; d != o.root {
		d.attr.MTime = tree.Time{Sec: 1700000000 + o.clock}
	}
}

// copyUp copies a file to the upper directory, with all of its names.
func (o *overlay) copyUp(d *merged, name string) *merged {
	n := d.children[name]
	if n.upper || n.attr.Type == tree.Dir {
		n.upper = true
		return n
	}
	o.inos++
	n.upper, n.ino = true, o.inos
	o.root.raise(n)
	return n
}

// raise copies the directories up that n is in.
func (m *merged) raise(n *merged) bool {
	in := false
	for _, c := range m.children {
		in = c == n || c.raise(n) || in
	}
	m.upper = m.upper || in
	return in
}

// view returns the merged tree, or the upper directory, as a file system shows it.
func (o *overlay) view(upper bool) *treetest.Node {
	names := map[uint64]uint32{}
	o.each(o.root, func(n *merged) { names[n.ino]++ })
	return o.shown(o.root, upper, names)
}

func (o *overlay) each(n *merged, fn func(*merged)) {
	fn(n)
	for _, c := range n.children {
		o.each(c, fn)
	}
}

func (o *overlay) shown(n *merged, upper bool, names map[uint64]uint32) *treetest.Node {
	m := &treetest.Node{A: n.attr, Data: n.data, ID: n.ino, Names: names[n.ino]}
	m.A.Size, m.A.Xattrs = int64(len(n.data)), slices.Clone(n.attr.Xattrs)
	for name, c := range n.children {
		if !upper || c.upper {
			m.Set(name, o.shown(c, upper, names))
		}
	}
	if !upper || n.children == nil {
		return m
	}
	if n.lower == nil {
		m.AddXattr("trusted.overlay.opaque", "y")
		return m
	}
	m.AddXattr("trusted.overlay.origin", "\x00\xfb\x1d")
	if n.moved {
		m.AddXattr("trusted.overlay.redirect", n.path)
	}
	for name := range n.lower.children {
		if n.children[name] == nil { // all whiteouts are the same file
			m.Set(name, &treetest.Node{A: tree.Attr{Type: tree.Char}, ID: 1 << 40, Names: 7})
		}
	}
	return m
}
