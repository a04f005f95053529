package layer

import (
	"slices"
	"sort"
	"strings"

	"turnstone.dev/turnstone/internal/store/tree"
)

// links follows which paths are one file: those of the parent, less the paths that
// something in the upper directory hides, and those of the upper directory.
type links struct {
	old    []tree.LinkGroup
	paths  []linked // of the parent, sorted by path
	hidden []bool   // for each of paths
	upper  map[uint64][]string
}

type linked struct {
	path  string
	group int
}

func newLinks(old []tree.LinkGroup) *links {
	l := &links{old: old, upper: map[uint64][]string{}}
	for i, g := range old {
		for _, p := range g {
			l.paths = append(l.paths, linked{p, i})
		}
	}
	slices.SortFunc(l.paths, func(a, b linked) int { return strings.Compare(a.path, b.path) })
	l.hidden = make([]bool, len(l.paths))
	return l
}

// hide takes a path, and all below it, out of the parent's groups.
func (l *links) hide(path string) {
	from := func(prefix string) int {
		return sort.Search(len(l.paths), func(i int) bool { return l.paths[i].path >= prefix })
	}
	if i := from(path); i < len(l.paths) && l.paths[i].path == path {
		l.hidden[i] = true
	}
	for i := from(path + "/"); i < len(l.paths) && strings.HasPrefix(l.paths[i].path, path+"/"); i++ {
		l.hidden[i] = true
	}
}

// add notes a path of an inode of the upper directory.
func (l *links) add(ino uint64, path string) { l.upper[ino] = append(l.upper[ino], path) }

// result returns the groups that there are now.
func (l *links) result() []tree.LinkGroup {
	left := make([]tree.LinkGroup, len(l.old))
	for i, p := range l.paths { // sorted, so each group is
		if !l.hidden[i] {
			left[p.group] = append(left[p.group], p.path)
		}
	}
	for _, g := range l.upper {
		slices.Sort(g)
		left = append(left, g)
	}
	left = slices.DeleteFunc(left, func(g tree.LinkGroup) bool { return len(g) < 2 })
	slices.SortFunc(left, func(a, b tree.LinkGroup) int { return strings.Compare(a[0], b[0]) })
	return left
}

// changed returns the paths that are in groups now other than the groups they were in, or in none.
func (l *links) changed(now []tree.LinkGroup) map[string]bool {
	out := map[string]bool{}
	same := map[string]tree.LinkGroup{}
	for _, g := range now {
		same[g[0]] = g
	}
	for _, g := range l.old {
		if slices.Equal(same[g[0]], g) {
			delete(same, g[0])
			continue
		}
		for _, p := range g {
			out[p] = false
		}
	}
	for _, g := range same {
		for _, p := range g {
			out[p] = false
		}
	}
	return out
}
