package merge

import (
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
)

// Names of a file (hard links) merge as sets: two names are the same file in the result if they are
// the same file on both sides, or on one side but not in the base. A side without both names has no
// influence.

// A linker merges the groups of names.
type linker struct {
	m      *merger
	merged *node
	group  [3]map[string]int // for base, ours and theirs: by name, the group's number from 1 on
	up     map[string]string // union-find: parent pointers towards the representative name
}

// mergeLinks returns the groups of the merged tree, and makes their files equal if one side added a
// name to a file that the other changed.
func (m *merger) mergeLinks(merged *node) ([]tree.LinkGroup, error) {
	if merged == nil || len(m.links[1])+len(m.links[2]) == 0 {
		return nil, nil
	}
	l := &linker{m: m, merged: merged, up: map[string]string{}}
	out, changed := l.settled()
	names := l.index(changed)
	present, err := l.present(names)
	if err != nil {
		return nil, err
	}
	if err := l.union(present); err != nil {
		return nil, err
	}
	sets := map[string][]string{}
	for p := range present {
		root := l.root(p)
		sets[root] = append(sets[root], p)
	}
	for _, set := range sets {
		slices.Sort(set)
		if len(set) < 2 {
			continue
		}
		groups, err := l.settle(set, present)
		if err != nil {
			return nil, err
		}
		out = append(out, groups...)
	}
	slices.SortFunc(out, func(a, b tree.LinkGroup) int { return strings.Compare(a[0], b[0]) })
	return out, nil
}

// settled returns the groups that are the same in all three trees, and for each tree the others.
// The names of the former were merged in the same way because they were the same, unless a decision
// named one of them.
func (l *linker) settled() (same []tree.LinkGroup, changed [3][]tree.LinkGroup) {
	m := l.m
	var groups [3][]tree.LinkGroup
	for i, root := range []*node{m.base, m.ours, m.theirs} {
		groups[i] = rename(m.links[i], m.movedIn(root))
	}
	if len(m.res.Resolved)+len(m.res.Conflicts)+len(m.res.Renames) > 0 {
		return nil, groups
	}
	count := map[string]int{}
	for _, gs := range groups {
		for _, g := range gs {
			count[strings.Join(g, "\x00")]++
		}
	}
	for i, gs := range groups {
		for _, g := range gs {
			if count[strings.Join(g, "\x00")] < len(groups) {
				changed[i] = append(changed[i], g)
			} else if i == 0 {
				same = append(same, g)
			}
		}
	}
	return same, changed
}

// rename returns groups with the file names after following renames.
func rename(groups []tree.LinkGroup, moved map[string]string) []tree.LinkGroup {
	if len(moved) == 0 {
		return groups
	}
	out := make([]tree.LinkGroup, len(groups))
	for i, g := range groups {
		out[i] = slices.Clone(g)
		for j, p := range out[i] {
			if to, ok := moved[p]; ok {
				out[i][j] = to
			}
		}
		slices.Sort(out[i])
	}
	return out
}

// index numbers the groups and returns all names in them.
func (l *linker) index(groups [3][]tree.LinkGroup) []string {
	var names []string
	for i, gs := range groups {
		l.group[i] = map[string]int{}
		for n, g := range gs {
			for _, p := range g {
				l.group[i][p] = n + 1
				names = append(names, p)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// A linked is a name in base, ours, theirs and the result.
type linked [4]*node

// present returns the names in the result. An undecided name has no file that could be linked.
func (l *linker) present(names []string) (map[string]linked, error) {
	out := map[string]linked{}
	for _, p := range names {
		var at linked
		for i, root := range []*node{l.m.base, l.m.ours, l.m.theirs, l.merged} {
			n, err := l.m.find(root, p)
			if err != nil {
				return nil, err
			}
			if isLeaf(n) {
				at[i] = n
			}
		}
		if at[3] != nil && !l.m.open(p) {
			out[p] = at
		}
	}
	return out, nil
}

// A status determines a name's links. A number is a group; 0 means no group, -1 that the tree does
// not contain the name.
type status [3]int

// linked reports whether names of statuses a and b are the same file.
func (a status) linked(b status) bool {
	var says, is [3]bool
	for i := range a {
		says[i] = a[i] >= 0 && b[i] >= 0
		is[i] = says[i] && a[i] > 0 && a[i] == b[i]
	}
	switch {
	case says[1] && says[2]:
		return is[1] && is[2] || !is[0] && (is[1] || is[2])
	case says[1]:
		return is[1]
	}
	return is[2]
}

// union joins the names to sets. Names of a status are equivalent, so that a large group costs only
// its number of names.
func (l *linker) union(present map[string]linked) error {
	like := map[status][]string{}
	for p, at := range present {
		var s status
		for i := range s {
			if s[i] = l.group[i][p]; at[i] == nil {
				s[i] = -1
			}
		}
		like[s] = append(like[s], p)
	}
	near := map[[2]int][]status{} // the statuses in a group of ours or theirs
	for s, names := range like {
		if s.linked(s) {
			for _, p := range names[1:] {
				l.join(names[0], p)
			}
		}
		for i := 1; i < 3; i++ {
			if s[i] > 0 {
				near[[2]int{i, s[i]}] = append(near[[2]int{i, s[i]}], s)
			}
		}
	}
	for _, statuses := range near {
		if err := l.m.ctx.Err(); err != nil {
			return err
		}
		for i, a := range statuses {
			for _, b := range statuses[:i] {
				if a.linked(b) {
					l.joinAll(like[a], like[b])
				}
			}
		}
	}
	return nil
}

// joinAll links each name of a with each name of b.
func (l *linker) joinAll(a, b []string) {
	for _, p := range b {
		l.join(a[0], p)
	}
	for _, p := range a[1:] {
		l.join(b[0], p)
	}
}

func (l *linker) root(p string) string {
	for l.up[p] != "" {
		if next := l.up[l.up[p]]; next != "" {
			l.up[p] = next
		}
		p = l.up[p]
	}
	return p
}

func (l *linker) join(a, b string) {
	if a, b = l.root(a), l.root(b); a != b {
		l.up[b] = a
	}
}

// settle makes a group of a set of names, if they are equal or can be made equal.
func (l *linker) settle(set []string, present map[string]linked) ([]tree.LinkGroup, error) {
	var old []string // names that existed before
	for _, p := range set {
		if present[p][0] != nil {
			old = append(old, p)
		}
	}
	switch {
	case l.equal(set, present, 3):
		return []tree.LinkGroup{set}, nil
	case l.touched(set, present):
		return []tree.LinkGroup{set}, l.latest(set, present)
	case len(old) > 0 && l.equal(old, present, 3):
		// A new name for a file that the other side changed refers to the changed file.
		for _, p := range set {
			if err := l.replace(p, present[old[0]][3]); err != nil {
				return nil, err
			}
		}
		return []tree.LinkGroup{set}, nil
	}
	at := present[set[0]]
	c := Conflict{Path: set[0], Kind: turnstone.ConflictLinks, Detail: strings.Join(set, ", ")}
	side := l.m.decide(c, at[0], at[1], at[2])
	if side == turnstone.SideNone {
		return nil, nil
	}
	return l.asIn(int(side), set, present)
}

// asIn restores a set's groups in ours (1) or theirs (2), for existing names.
func (l *linker) asIn(i int, set []string, present map[string]linked) ([]tree.LinkGroup, error) {
	groups := map[int]tree.LinkGroup{}
	for _, p := range set {
		n := present[p][i]
		if n == nil {
			continue
		}
		if err := l.replace(p, n); err != nil {
			return nil, err
		}
		if g := l.group[i][p]; g > 0 {
			groups[g] = append(groups[g], p)
		}
	}
	var out []tree.LinkGroup
	for _, g := range groups {
		if len(g) > 1 {
			out = append(out, g)
		}
	}
	return out, nil
}

// equal reports whether the files at these names are the same in tree i, including timestamps.
func (l *linker) equal(names []string, present map[string]linked, i int) bool {
	for _, p := range names[1:] {
		if !identical(present[names[0]][i], present[p][i]) {
			return false
		}
	}
	return true
}

// touched reports whether the files at these names are the same except for timestamps.
func (l *linker) touched(names []string, present map[string]linked) bool {
	first := present[names[0]][3]
	for _, p := range names[1:] {
		if !sameLeafOrDir(first, present[p][3]) {
			return false
		}
	}
	return true
}

// latest sets all names to the latest of their timestamps.
func (l *linker) latest(names []string, present map[string]linked) error {
	last := present[names[0]][3]
	for _, p := range names[1:] {
		if n := present[p][3]; mergeTime(nil, last, n) == n.MTime {
			last = n
		}
	}
	for _, p := range names {
		if err := l.replace(p, last); err != nil {
			return err
		}
	}
	return nil
}

// replace puts a copy of n at p.
func (l *linker) replace(p string, n *node) error {
	c := *n
	c.from, c.forced = "", ""
	return l.m.put(l.merged, p, &c, nil)
}
