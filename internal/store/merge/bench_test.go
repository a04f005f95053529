package merge

import (
	"fmt"
	"maps"
	"testing"

	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// large returns this many files, 100 in each directory, 100 of these in each of 20 or fewer.
func large(files int) model {
	m := model{}
	for i := range files {
		m[fmt.Sprintf("d%02d/e%02d/f%03d", i/10_000%20, i/100%100, i%100)] = &thing{
			attr: tree.Attr{Type: tree.File, Mode: 0o644}, data: fmt.Sprint("file ", i%50)}
	}
	return m
}

// change returns m with n files changed, far from each other.
func (m model) change(n, offset, dirs int) model {
	out := maps.Clone(m)
	for i := range n {
		p := fmt.Sprintf("d%02d/e%02d/f%03d", (i*3+offset)%dirs, (i*7+offset)%100, offset)
		out[p] = &thing{attr: tree.Attr{Type: tree.File, Mode: 0o644},
			data: fmt.Sprint("changed ", offset)}
	}
	return out
}

// Equal directories are not read: of 304 directories only those with a change, and their parents,
// in each of the three trees.
func TestEqualDirectoriesAreNotRead(t *testing.T) {
	w := treetest.NewStore()
	m := large(30_000)
	base, ours, theirs := m.put(t, w), m.change(5, 1, 3).put(t, w), m.change(5, 2, 3).put(t, w)
	before, _ := w.Calls()
	opened := w.Opens()
	res, err := Trees(t.Context(), w, base, ours, theirs, Options{})
	if err != nil || len(res.Conflicts) > 0 {
		t.Fatal(err, res)
	}
	gets, _ := w.Calls()
	gets, opens := gets-before, w.Opens()-opened
	// 3 roots, 3 tops, 10 directories on each of two levels.
	if most := 3 * (2 + 10 + 10); gets > most || opens > 0 {
		t.Errorf("%d objects read, and %d files; want at most %d", gets, opens, most)
	}
}

func BenchmarkTrees(b *testing.B) {
	w := treetest.NewStore()
	m := large(200_000)
	base, ours, theirs := m.put(b, w), m.change(5, 1, 20).put(b, w), m.change(5, 2, 20).put(b, w)
	for b.Loop() {
		if _, err := Trees(b.Context(), w, base, ours, theirs, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkText(b *testing.B) {
	var base, ours, theirs []byte
	for i := range 20_000 {
		line := fmt.Appendf(nil, "line %d of a text\n", i)
		if i%3 == 0 {
			line = []byte("}\n")
		}
		base = append(base, line...)
		if i%100 != 3 {
			ours = append(ours, line...)
		}
		if i%100 == 50 {
			theirs = append(theirs, "new\n"...)
		}
		theirs = append(theirs, line...)
	}
	for b.Loop() {
		if _, n := mergeText(base, ours, theirs, testNames); n > 0 {
			b.Fatal(n)
		}
	}
	b.SetBytes(int64(len(base)))
}
