package merge

import (
	"maps"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// The merge follows renames as git does (merge-ort): a file that one side moved, and that the other
// side changed or removed. The other trees get the file at its new path too; then the trees merge
// by paths. A moved file that the other side did not change needs no special treatment: the merge
// removes it at one path and adds it at another.

// A found is the destination of a moved file.
type found struct {
	to      string
	percent int
}

// followRenames finds the relevant renames and moves the files of the other trees.
func (m *merger) followRenames() error {
	if m.base == nil || m.ours == nil || m.theirs == nil {
		return nil
	}
	// by side: the base's files that the side no longer has and that the other side has changed
	var sources [3]map[string]*node
	sources[turnstone.SideOurs], sources[turnstone.SideTheirs] = map[string]*node{},
		map[string]*node{}
	if err := m.findSources("/", m.base, m.ours, m.theirs, &sources); err != nil {
		return err
	}
	var renames [3]map[string]found
	for side, root := range map[turnstone.Side]*node{turnstone.SideOurs: m.ours,
		turnstone.SideTheirs: m.theirs} {
		var err error
		if renames[side], err = m.detect(sources[side], root); err != nil {
			return err
		}
	}
	m.sources = maps.Clone(sources[turnstone.SideOurs])
	maps.Copy(m.sources, sources[turnstone.SideTheirs])
	from := maps.Clone(renames[turnstone.SideOurs])
	if from == nil {
		from = map[string]found{}
	}
	maps.Copy(from, renames[turnstone.SideTheirs])
	for _, a := range slices.Sorted(maps.Keys(from)) {
		o, byOurs := renames[turnstone.SideOurs][a]
		t, byTheirs := renames[turnstone.SideTheirs][a]
		var err error
		switch {
		case byOurs && byTheirs && o.to == t.to:
			err = m.follow(turnstone.MergeRename{From: a, To: o.to, Side: "both",
				Similarity: min(o.percent, t.percent)}, m.ours)
		case byOurs && byTheirs:
			err = m.oneToTwo(a, o, t)
		case byOurs:
			err = m.oneSided(a, o, turnstone.SideOurs)
		default:
			err = m.oneSided(a, t, turnstone.SideTheirs)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findSources collects the files that a side no longer has while the other side changed or removed
// them. Whole directories that one side left unchanged are skipped.
func (m *merger) findSources(p string, b, o, t *node, sources *[3]map[string]*node) error {
	switch {
	case b == nil, identical(b, o), identical(b, t):
		return nil
	case isFile(b):
		if b.Size == 0 {
			return nil // all empty files are alike
		}
		if !isFile(o) && !(isFile(t) && sameLeafOrDir(b, t)) {
			sources[turnstone.SideOurs][p] = b
		}
		if !isFile(t) && !(isFile(o) && sameLeafOrDir(b, o)) {
			sources[turnstone.SideTheirs][p] = b
		}
		return nil
	case !isDir(b):
		return nil
	}
	kids, err := m.kids(b)
	if err != nil {
		return err
	}
	for _, k := range kids {
		ok, err := m.kid(o, k.Name)
		if err != nil {
			return err
		}
		tk, err := m.kid(t, k.Name)
		if err != nil {
			return err
		}
		if err := m.findSources(below(p, k.Name), k, ok, tk, sources); err != nil {
			return err
		}
	}
	return nil
}

// A candidate is a possible destination of a moved file.
type candidate struct {
	path string
	n    *node
}

// findTargets collects the files that n has and b does not.
func (m *merger) findTargets(p string, b, n *node, to *[]candidate) error {
	switch {
	case n == nil, identical(b, n):
		return nil
	case isFile(n):
		if !isFile(b) && n.Size > 0 {
			*to = append(*to, candidate{p, n})
		}
		return nil
	}
	kids, err := m.kids(n)
	if err != nil {
		return err
	}
	for _, k := range kids {
		bk, err := m.kid(b, k.Name)
		if err != nil {
			return err
		}
		if err := m.findTargets(below(p, k.Name), bk, k, to); err != nil {
			return err
		}
	}
	return nil
}

// oneSided follows a file that side moved and the other side changed or removed.
func (m *merger) oneSided(a string, f found, side turnstone.Side) error {
	mine, other := m.ours, m.theirs
	deleted, added := turnstone.ConflictRenameDelete, turnstone.ConflictRenameAdd
	if side == turnstone.SideTheirs {
		mine, other = other, mine
		deleted, added = mirrorOf(deleted), mirrorOf(added)
	}
	theirs, err := m.find(other, a)
	if err != nil {
		return err
	}
	r := turnstone.MergeRename{From: a, To: f.to, Side: side.String(), Similarity: f.percent}
	switch free, err := m.freeBut(other, f.to, a); {
	case err != nil:
		return err
	case !free:
		m.collide(f.to, added)
		return nil
	case isFile(theirs):
		if err := m.move(other, a, f.to, mine); err != nil {
			return err
		}
		return m.follow(r, mine)
	case theirs != nil:
		return nil // another type on the other side: no file to follow
	}
	if err := m.follow(r, mine); err != nil {
		return err
	}
	moved, err := m.find(m.base, f.to)
	if err != nil {
		return err
	}
	moved.forced = deleted
	return nil
}

// freeBut reports whether to is free in root after the removal of the file at from.
func (m *merger) freeBut(root *node, to, from string) (bool, error) {
	if len(to) > len(from) && to[:len(from)] == from && to[len(from)] == '/' {
		if n, err := m.find(root, from); isLeaf(n) || err != nil {
			return true, err
		}
	}
	return m.free(root, to)
}

// collide records a rename to a name that the other side uses for another entry.
func (m *merger) collide(p string, kind turnstone.ConflictKind) {
	if before := m.renamed[p]; before != "" && before != kind {
		kind = turnstone.ConflictRename2to1
	}
	m.renamed[p] = kind
}

// follow also moves the base's file, so that it is the base of the moved file. An earlier rename
// may have made its old name a directory.
func (m *merger) follow(r turnstone.MergeRename, like *node) error {
	m.res.Renames = append(m.res.Renames, r)
	n, err := m.find(m.base, r.From)
	if err != nil {
		return err
	}
	if isLeaf(n) {
		if _, err := m.take(m.base, r.From); err != nil {
			return err
		}
	}
	moved := *m.sources[r.From]
	moved.from = r.From
	return m.put(m.base, r.To, &moved, like)
}

// oneToTwo handles a file that both sides moved, to different names. After a decision for a name,
// the file is merged there.
func (m *merger) oneToTwo(a string, o, t found) error {
	freeO, err := m.freeBut(m.theirs, o.to, a)
	if err != nil {
		return err
	}
	freeT, err := m.freeBut(m.ours, t.to, a)
	if err != nil {
		return err
	}
	if !freeO || !freeT {
		if !freeO {
			m.collide(o.to, turnstone.ConflictRenameAdd)
		}
		if !freeT {
			m.collide(t.to, turnstone.ConflictAddRename)
		}
		return nil // each side's file is at the side's own path
	}
	var at [3]*node
	for i, f := range []candidate{{a, m.base}, {o.to, m.ours}, {t.to, m.theirs}} {
		if at[i], err = m.find(f.n, f.path); err != nil {
			return err
		}
	}
	at[0] = m.sources[a]
	c := Conflict{Path: a, Kind: turnstone.ConflictRenameRename, OursPath: o.to, TheirsPath: t.to}
	switch m.decide(c, at[0], at[1], at[2]) {
	case turnstone.SideOurs:
		if err := m.move(m.theirs, t.to, o.to, m.ours); err != nil {
			return err
		}
		return m.follow(turnstone.MergeRename{From: a, To: o.to, Side: turnstone.SideOurs.String(),
			Similarity: o.percent}, m.ours)
	case turnstone.SideTheirs:
		if err := m.move(m.ours, o.to, t.to, m.theirs); err != nil {
			return err
		}
		return m.follow(turnstone.MergeRename{From: a, To: t.to,
			Side:       turnstone.SideTheirs.String(),
			Similarity: t.percent}, m.theirs)
	}
	// There will be no result. The rest must not appear as further conflicts.
	for _, f := range []candidate{{a, m.base}, {o.to, m.ours}, {t.to, m.theirs}} {
		if n, err := m.find(f.n, f.path); err != nil || !isLeaf(n) {
			if err != nil {
				return err
			}
			continue
		}
		if _, err := m.take(f.n, f.path); err != nil {
			return err
		}
	}
	return nil
}

// movedIn returns the current paths in root of entries that had other names.
func (m *merger) movedIn(root *node) map[string]string {
	to := map[string]string{}
	var walk func(p string, n *node)
	walk = func(p string, n *node) {
		if n == nil {
			return
		}
		if n.from != "" {
			to[n.from] = p
		}
		if n.dirty && n.Type == tree.Dir {
			for _, k := range n.kids {
				walk(below(p, k.Name), k)
			}
		}
	}
	walk("/", root)
	return to
}
