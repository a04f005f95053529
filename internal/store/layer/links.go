package layer

import (
	"slices"
	"sort"
	"strings"

	"turnstone.dev/turnstone/internal/store/tree"
)

// links tracks which paths are the same file: the parent's paths, without those that the upper
// directory hides, and the upper directory's paths.
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

// hide removes a path, and everything below it, from the parent's groups.
func (l *links) hide(path string) {
	from := func(prefix string) int {
		return sort.Search(len(l.paths), func(i int) bool { return l.paths[i].path >= prefix })
	}
	if i := from(path); i < len(l.paths) && l.paths[i].path == path {
		l.hidden[i] = true
	}
	for i := from(path + "/"); i < len(l.paths) &&
		strings.HasPrefix(l.paths[i].path, path+"/"); i++ {
		l.hidden[i] = true
	}
}

// add adds a path of an inode of the upper directory.
func (l *links) add(ino uint64, path string) { l.upper[ino] = append(l.upper[ino], path) }

// result returns the resulting groups.
func (l *links) result() []tree.LinkGroup {
	left := make([]tree.LinkGroup, len(l.old))
	for i, p := range l.paths { // sorted, so each group is sorted
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

// changed returns the paths whose group has changed.
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
