package merge

import (
	"path"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A node is a position in one of the three trees, or in the result. A directory's kids are read on
// demand.
type node struct {
	tree.Entry
	kids   []*node                // sorted by name
	loaded bool                   // kids are read
	dirty  bool                   // kids differ from Entry.Tree, here or further down
	ghost  bool                   // a directory only on the path to a moved file
	from   string                 // path before a move; empty: not moved
	forced turnstone.ConflictKind // for a base's file: a conflict even if nothing else differs
}

func isDir(n *node) bool  { return n != nil && n.Type == tree.Dir }
func isFile(n *node) bool { return n != nil && n.Type == tree.File }
func isLeaf(n *node) bool { return n != nil && n.Type != tree.Dir }

// identical reports, without reading anything, whether a and b are the same in all stored
// properties except their names. False may also mean unknown.
func identical(a, b *node) bool {
	if a == nil || b == nil || a.ghost || b.ghost || !sameLeafOrDir(a, b) || a.MTime != b.MTime {
		return false
	}
	return a.Type != tree.Dir || !a.dirty && !b.dirty && a.Tree == b.Tree
}

// sameLeafOrDir reports whether a and b are the same except for timestamps and the content of
// directories.
func sameLeafOrDir(a, b *node) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID &&
		sameXattrs(a.Xattrs, b.Xattrs) && sameValue(a, b)
}

// sameValue reports whether a and b, of the same type, have the same content, target or numbers. It
// ignores the content of directories.
func sameValue(a, b *node) bool {
	switch a.Type {
	case tree.File:
		return a.Content.Digest == b.Content.Digest
	case tree.Symlink:
		return a.Target == b.Target
	case tree.Char, tree.Block:
		return a.Major == b.Major && a.Minor == b.Minor
	}
	return true
}

func sameXattrs(a, b []tree.Xattr) bool {
	return slices.EqualFunc(a, b, func(x, y tree.Xattr) bool {
		return x.Name == y.Name && string(x.Value) == string(y.Value)
	})
}

// kids returns n's children; none if n is nil or not a directory.
func (m *merger) kids(n *node) ([]*node, error) {
	if !isDir(n) {
		return nil, nil
	}
	if n.loaded {
		return n.kids, nil
	}
	if err := m.ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := m.directory(n.Tree)
	if err != nil {
		return nil, err
	}
	all := make([]node, len(dir))
	n.kids = make([]*node, len(dir))
	for i := range dir {
		all[i].Entry = dir[i]
		n.kids[i] = &all[i]
	}
	n.loaded = true
	return n.kids, nil
}

func byName(n *node, name string) int { return strings.Compare(n.Name, name) }

// kid returns the child with that name, or nil.
func (m *merger) kid(n *node, name string) (*node, error) {
	kids, err := m.kids(n)
	if err != nil {
		return nil, err
	}
	if i, ok := slices.BinarySearchFunc(kids, name, byName); ok {
		return kids[i], nil
	}
	return nil, nil
}

// find returns the node at p, or nil.
func (m *merger) find(root *node, p string) (*node, error) {
	n := root
	for _, name := range split(p) {
		var err error
		if n, err = m.kid(n, name); n == nil || err != nil {
			return nil, err
		}
	}
	return n, nil
}

// free reports whether p is available: there is no entry at p, and existing parents are
// directories.
func (m *merger) free(root *node, p string) (bool, error) {
	n := root
	for _, name := range split(p) {
		if !isDir(n) {
			return false, nil
		}
		var err error
		if n, err = m.kid(n, name); n == nil || err != nil {
			return true, err
		}
	}
	return false, nil
}

// take removes and returns the existing entry at p. Directories stay, even empty.
func (m *merger) take(root *node, p string) (*node, error) {
	n := root
	names := split(p)
	for i, name := range names {
		kids, err := m.kids(n)
		if err != nil {
			return nil, err
		}
		n.dirty = true
		at, ok := slices.BinarySearchFunc(kids, name, byName)
		switch {
		case !ok:
			return nil, nil
		case i == len(names)-1:
			taken := kids[at]
			n.kids = slices.Delete(kids, at, at+1)
			return taken, nil
		}
		n = kids[at]
	}
	return nil, nil
}

// put replaces the entry at p by leaf. Missing parent directories become ghosts, with the
// attributes of like's directories.
func (m *merger) put(root *node, p string, leaf *node, like *node) error {
	n := root
	names := split(p)
	for i, name := range names {
		kids, err := m.kids(n)
		if err != nil {
			return err
		}
		if like, err = m.kid(like, name); err != nil {
			return err
		}
		n.dirty = true
		at, ok := slices.BinarySearchFunc(kids, name, byName)
		next := leaf
		if i < len(names)-1 {
			if ok && kids[at].Type == tree.Dir {
				n = kids[at]
				continue
			}
			next = &node{loaded: true, dirty: true, ghost: true}
			next.Attr = tree.Attr{Type: tree.Dir, Mode: 0o755}
			if isDir(like) {
				next.Attr = like.Attr
			}
		}
		next.Name = name
		if ok {
			kids[at] = next
		} else {
			n.kids = slices.Insert(kids, at, next)
		}
		n = next
	}
	return nil
}

// move moves the file at from in root to the name to.
func (m *merger) move(root *node, from, to string, like *node) error {
	n, err := m.take(root, from)
	if err != nil || n == nil {
		return err
	}
	moved := *n
	moved.from = from
	return m.put(root, to, &moved, like)
}

// split returns the names in an absolute path.
func split(p string) []string {
	if p = strings.Trim(p, "/"); p == "" {
		return nil
	}
	return strings.Split(p, "/")
}

// below returns the path of name in dir. Unlike path.Join it does not clean names.
func below(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// parent returns the directory of p, and false for the top.
func parent(p string) (string, bool) {
	if p == "/" || !strings.HasPrefix(p, "/") {
		return "", false
	}
	return path.Dir(p), true
}
