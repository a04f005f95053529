package merge

import (
	"context"
	"maps"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// A Store contains the trees and receives the merged tree.
type Store interface {
	tree.Writer
	tree.ContentGetter
}

// A merger is the state of a merge.
type merger struct {
	ctx  context.Context
	w    Store
	opts Options
	res  *Result

	base, ours, theirs *node // after renames: see renames.go
	links              [3][]tree.LinkGroup
	sources            map[string]*node // the base's files whose renames were searched
	// kinds of conflicts at these names, to which a rename leads
	renamed map[string]turnstone.ConflictKind
	used    map[string]bool // keys of opts.Paths that have decided a conflict
}

// Trees merges ours and theirs, which both derive from base. A base with the zero Ref is an empty
// tree: the two have no common ancestor. Objects of directories that are equal in two of the three
// trees are not read. Trees is safe for concurrent use if w is.
//
// The result has a tree only if every conflict was decided. Errors are those of w, and ctx's error.
func Trees(ctx context.Context, w Store, base, ours, theirs turnstone.TreeRef,
	opts Options) (*Result, error) {
	m := &merger{ctx: ctx, w: w, opts: opts, res: &Result{},
		renamed: map[string]turnstone.ConflictKind{}, used: map[string]bool{}}
	var err error
	for i, r := range []struct {
		to  **node
		ref turnstone.TreeRef
	}{{&m.base, base}, {&m.ours, ours}, {&m.theirs, theirs}} {
		if *r.to, m.links[i], err = m.root(r.ref); err != nil {
			return nil, err
		}
	}
	merged, links, err := m.run()
	if err != nil {
		return nil, turnstone.NewError("merge.trees", turnstone.KindOf(err), "", err).
			WithHint(turnstone.HintOf(err))
	}
	m.finish()
	if len(m.res.Conflicts) > 0 {
		return m.res, nil
	}
	if m.res.Tree, err = m.write(merged, links); err != nil {
		return nil, turnstone.NewError("merge.trees", turnstone.KindOf(err), "", err).
			WithHint(turnstone.HintOf(err))
	}
	return m.res, nil
}

// run merges the trees after reading their roots.
func (m *merger) run() (*node, []tree.LinkGroup, error) {
	if err := m.followRenames(); err != nil {
		return nil, nil, err
	}
	merged, err := m.merge("/", m.base, m.ours, m.theirs)
	if err != nil {
		return nil, nil, err
	}
	links, err := m.mergeLinks(merged)
	return merged, links, err
}

// finish sorts the result.
func (m *merger) finish() {
	sortConflicts(m.res.Conflicts)
	sortConflicts(m.res.Resolved)
	slices.Sort(m.res.Merged)
	slices.SortFunc(m.res.Renames, func(a, b turnstone.MergeRename) int {
		return strings.Compare(a.From, b.From)
	})
	for _, p := range slices.Sorted(maps.Keys(m.opts.Paths)) {
		if !m.used[p] && strings.HasPrefix(p, "/") {
			m.res.Unused = append(m.res.Unused, p)
		}
	}
}

func sortConflicts(cs []Conflict) {
	slices.SortStableFunc(cs, func(a, b Conflict) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		if c := strings.Compare(string(a.Kind), string(b.Kind)); c != 0 {
			return c
		}
		return strings.Compare(a.Detail, b.Detail)
	})
}

// root returns the top directory of ref, and its links.
func (m *merger) root(ref turnstone.TreeRef) (*node, []tree.LinkGroup, error) {
	if ref.Root == "" {
		return nil, nil, nil
	}
	r, err := m.readRoot(ref)
	if err != nil {
		return nil, nil, err
	}
	return &node{Entry: r.Entry}, r.Links, nil
}

// merge merges the entries at a path.
func (m *merger) merge(p string, b, o, t *node) (*node, error) {
	switch {
	case o == nil && t == nil:
		return nil, nil
	case identical(o, t):
		return o, nil
	case b != nil && b.forced != "":
		return m.mergeLeaf(p, b, o, t)
	case identical(o, b):
		return t, nil
	case identical(t, b):
		return o, nil
	case isDir(o) && isDir(t):
		return m.mergeDirs(p, b, o, t)
	case isDir(o) && t == nil:
		return m.mergeGone(p, b, o, turnstone.SideOurs)
	case isDir(t) && o == nil:
		return m.mergeGone(p, b, t, turnstone.SideTheirs)
	case isDir(o) || isDir(t):
		return m.mergeDirLeaf(p, b, o, t)
	}
	return m.mergeLeaf(p, b, o, t)
}

// mergeKids merges the contents of three directories, of which any may be nil or another type.
func (m *merger) mergeKids(p string, b, o, t *node) ([]*node, error) {
	var lists [3][]*node
	for i, n := range []*node{b, o, t} {
		var err error
		if lists[i], err = m.kids(n); err != nil {
			return nil, err
		}
	}
	var out []*node
	for {
		name, any := "", false
		for _, l := range lists {
			if len(l) > 0 && (!any || l[0].Name < name) {
				name, any = l[0].Name, true
			}
		}
		if !any {
			return out, nil
		}
		var at [3]*node
		for i, l := range lists {
			if len(l) > 0 && l[0].Name == name {
				at[i], lists[i] = l[0], l[1:]
			}
		}
		n, err := m.merge(below(p, name), at[0], at[1], at[2])
		if err != nil {
			return nil, err
		}
		if n != nil {
			if n.Name != name { // the entry or its name was moved
				c := *n
				c.Name, n = name, &c
			}
			out = append(out, n)
		}
	}
}

// mergeDirs merges two directories. Their attributes merge as those of files do.
func (m *merger) mergeDirs(p string, b, o, t *node) (*node, error) {
	kids, err := m.mergeKids(p, b, o, t)
	if err != nil {
		return nil, err
	}
	out := &node{Entry: o.Entry, kids: kids, loaded: true, dirty: true}
	switch {
	case o.ghost && t.ghost:
		if len(kids) == 0 {
			return nil, nil
		}
	case o.ghost:
		out.Entry = t.Entry
	case !t.ghost:
		if !isDir(b) || b.ghost {
			b = nil
		}
		out.Attr = m.mergeAttrs(p, b, o, t)
	}
	for _, side := range []*node{o, t} {
		if !side.dirty && !side.ghost && sameKids(side.kids, kids) {
			out.Tree, out.Hash, out.dirty = side.Tree, side.Hash, false
			break
		}
	}
	return out, nil
}

// sameKids reports whether a merged directory equals a side's directory. Both lists have been read.
func sameKids(side, merged []*node) bool {
	return slices.EqualFunc(side, merged, func(a, b *node) bool {
		return a == b || identical(a, b) && a.Name == b.Name
	})
}

// mergeGone merges a directory with its absence: side still has it, as n, the other does not.
// Side's changes in it conflict, its additions stay, and the rest is removed.
func (m *merger) mergeGone(p string, b, n *node, side turnstone.Side) (*node, error) {
	if !isDir(b) {
		if !n.dirty {
			return n, nil
		}
		b = nil
	}
	o, t := n, (*node)(nil)
	if side == turnstone.SideTheirs {
		o, t = nil, n
	}
	kids, err := m.mergeKids(p, b, o, t)
	if err != nil {
		return nil, err
	}
	out := &node{Entry: n.Entry, kids: kids, loaded: true, dirty: true}
	switch {
	case len(kids) > 0:
		return out, nil
	case n.ghost:
		return nil, nil
	case b == nil:
		return out, nil
	case b.ghost || sameLeafOrDir(b, n):
		return nil, nil
	}
	kind := turnstone.ConflictModifyDelete
	if side == turnstone.SideTheirs {
		kind = turnstone.ConflictDeleteModify
	}
	if m.decide(Conflict{Path: p, Kind: kind}, b, o, t) == side {
		return out, nil
	}
	return nil, nil
}

// mergeDirLeaf merges a directory with another type.
func (m *merger) mergeDirLeaf(p string, b, o, t *node) (*node, error) {
	dir, leaf, kind := o, t, turnstone.ConflictDirFile
	if isDir(t) {
		dir, leaf, kind = t, o, turnstone.ConflictFileDir
	}
	switch {
	case isDir(b):
		same, err := m.same(b, dir)
		if err != nil {
			return nil, err
		}
		if same {
			return leaf, nil
		}
	case isLeaf(b) && sameLeafOrDir(b, leaf):
		return dir, nil
	}
	if m.decide(Conflict{Path: p, Kind: kind}, b, o, t) == turnstone.SideTheirs {
		return t, nil
	}
	return o, nil
}

// same reports whether a and b are recursively equal except for timestamps.
func (m *merger) same(a, b *node) (bool, error) {
	if identical(a, b) {
		return true, nil
	}
	if !sameLeafOrDir(a, b) {
		return false, nil
	}
	x, err := m.kids(a)
	if err != nil {
		return false, err
	}
	y, err := m.kids(b)
	if err != nil || len(x) != len(y) {
		return false, err
	}
	for i := range x {
		if x[i].Name != y[i].Name {
			return false, nil
		}
		if same, err := m.same(x[i], y[i]); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// decide records a conflict and returns its deciding side, or None.
func (m *merger) decide(c Conflict, b, o, t *node) turnstone.Side {
	m.fill(&c, b, o, t)
	side := m.side(c)
	if side == turnstone.SideNone {
		side = m.opts.Default
	}
	return m.note(c, side)
}

// note records a conflict that side decides.
func (m *merger) note(c Conflict, side turnstone.Side) turnstone.Side {
	switch side {
	case turnstone.SideOurs:
		c.Resolution = turnstone.TookOurs
	case turnstone.SideTheirs:
		c.Resolution = turnstone.TookTheirs
	default:
		m.res.Conflicts = append(m.res.Conflicts, c)
		return turnstone.SideNone
	}
	m.res.Resolved = append(m.res.Resolved, c)
	return side
}

func (m *merger) fill(c *Conflict, b, o, t *node) {
	for _, v := range []struct {
		n    *node
		e    **tree.Entry
		path *string
	}{{b, &c.Base, &c.BasePath}, {o, &c.Ours, &c.OursPath}, {t, &c.Theirs, &c.TheirsPath}} {
		if v.n == nil || v.n.ghost {
			continue
		}
		e := v.n.Entry
		*v.e = &e
		if v.n.from != "" && v.n.from != c.Path {
			*v.path = v.n.from
		}
	}
}

// side returns the side that decides c by its path: one of its names, or the nearest directory
// above it.
func (m *merger) side(c Conflict) turnstone.Side {
	for _, p := range []string{c.Path, c.OursPath, c.TheirsPath, c.BasePath} {
		for ok := p != ""; ok; p, ok = parent(p) {
			if s := m.opts.Paths[p]; s != turnstone.SideNone {
				m.used[p] = true
				return s
			}
		}
	}
	return turnstone.SideNone
}

// open reports whether there is an undecided conflict at p or above it.
func (m *merger) open(p string) bool {
	return slices.ContainsFunc(m.res.Conflicts, func(c Conflict) bool {
		return c.Kind != turnstone.ConflictLinks && (p == c.Path ||
			strings.HasPrefix(p, c.Path+"/"))
	})
}
