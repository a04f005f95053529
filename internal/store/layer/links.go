package layer

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"strings"

	"turnstone.dev/turnstone/internal/store/tree"
)

// links tracks which paths are the same file: the parent's paths, without those that the upper
// directory hides, and the upper directory's paths. A path of the parent's follows the last rename
// of a directory above it: what the upper directory has in its place hides something else.
type links struct {
	old   []tree.LinkGroup
	paths []linked // of the parent, sorted by path
	moves []move   // from 1 on
	hides []hide
	upper map[uint64][]string
}

type linked struct {
	path   string
	group  int
	move   int // of moves; 0: none
	hidden bool
}

// A move is a renamed directory.
type move struct{ from, to string }

// A hide is a path, with everything below it, that is not visible where the rename left it.
type hide struct {
	path string
	move int
}

func newLinks(old []tree.LinkGroup) *links {
	l := &links{old: old, upper: map[uint64][]string{}, moves: make([]move, 1)}
	for i, g := range old {
		for _, p := range g {
			l.paths = append(l.paths, linked{path: p, group: i})
		}
	}
	slices.SortFunc(l.paths, func(a, b linked) int { return strings.Compare(a.path, b.path) })
	return l
}

// hide removes a path of the parent, and everything below it, from the parent's groups, as far as
// move is its last rename.
func (l *links) hide(path string, move int) {
	if len(l.paths) > 0 {
		l.hides = append(l.hides, hide{path, move})
	}
}

// move records that the parent's directory from, with everything below it, is now at to. It returns
// the number of the rename.
func (l *links) move(from, to string) int {
	l.moves = append(l.moves, move{from, to})
	return len(l.moves) - 1
}

// at returns the parent's paths that are path or below it.
func (l *links) at(path string) iter.Seq[*linked] {
	return func(yield func(*linked) bool) {
		from := func(prefix string) int {
			return sort.Search(len(l.paths), func(i int) bool { return l.paths[i].path >= prefix })
		}
		if i := from(path); i < len(l.paths) && l.paths[i].path == path && !yield(&l.paths[i]) {
			return
		}
		for i := from(path + "/"); i < len(l.paths) &&
			strings.HasPrefix(l.paths[i].path, path+"/"); i++ {
			if !yield(&l.paths[i]) {
				return
			}
		}
	}
}

// follow finds each path's last rename, and whether the path is hidden. Of several renames of the
// directories above a path, that of the lowest directory was the first: it took the path out of the
// others.
func (l *links) follow() {
	order := make([]int, 0, len(l.moves)-1)
	for i := range l.moves[1:] {
		order = append(order, i+1)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(len(l.moves[a].from), len(l.moves[b].from))
	})
	for _, m := range order {
		for p := range l.at(l.moves[m].from) {
			p.move = m
		}
	}
	for _, h := range l.hides {
		for p := range l.at(h.path) {
			p.hidden = p.hidden || p.move == h.move
		}
	}
}

// add adds a path of an inode of the upper directory.
func (l *links) add(ino uint64, path string) { l.upper[ino] = append(l.upper[ino], path) }

// result returns the resulting groups.
func (l *links) result() []tree.LinkGroup {
	l.follow()
	left := make([]tree.LinkGroup, len(l.old))
	for _, p := range l.paths {
		if !p.hidden {
			m := l.moves[p.move]
			left[p.group] = append(left[p.group], m.to+strings.TrimPrefix(p.path, m.from))
		}
	}
	for _, g := range l.upper {
		left = append(left, g)
	}
	for _, g := range left {
		slices.Sort(g)
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
