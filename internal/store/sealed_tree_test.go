package store_test

import (
	"bytes"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/seal"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestReadFromOthers reads from several domains, and puts in one.
func TestReadFromOthers(t *testing.T) {
	s := open(t, t.TempDir())
	a, b, c := domainOf(t, 1), domainOf(t, 2), domainOf(t, 3)
	objects := [][]byte{text(100, 1), text(100, 2), text(100, 3), text(100, 4)}
	for i, d := range []*seal.Domain{nil, a, b, c} {
		fill(t, s.in(d), objects[i:i+1], nil)
	}
	v := s.in(a, b)
	for _, o := range objects[:3] {
		wantObject(t, v, o)
		if ok, err := v.Has(t.Context(), turnstone.DigestBytes(o)); !ok || err != nil {
			t.Errorf("Has: %v, %v", ok, err)
		}
	}
	_, err := v.Get(t.Context(), turnstone.DigestBytes(objects[3]))
	wantErr(t, err, turnstone.KindNotFound)
	fill(t, v, objects[2:3], nil)
	wantObject(t, s.in(a), objects[2])
	d, err := s.Domains(t.Context())
	check(t, err)
	if d[a.ID()].Objects != 2 || d[b.ID()].Objects != 1 {
		t.Errorf("the domains are %+v", d)
	}
	fsckClean(t, s.in(nil, a, b, c))
	b.Erase()
	_, err = v.Get(t.Context(), turnstone.DigestBytes(objects[1]))
	wantErr(t, err, turnstone.KindUnavailable)
}

// treeOf returns a tree with a file of several chunks, which has the given names.
func treeOf(t testing.TB, names ...string) *treetest.Node {
	t.Helper()
	root, err := treetest.NewNode(treetest.File{Path: "/", MTime: 1},
		treetest.File{Path: "/a/", MTime: 1}, treetest.File{Path: "/z/", MTime: 1},
		treetest.File{Path: names[0], MTime: 1, Data: string(noise(3<<20, 1))},
		treetest.File{Path: "/small", MTime: 1, Data: "small"})
	check(t, err)
	first := root.At(names[0])
	first.Names = uint32(len(names))
	for _, n := range names[1:] {
		root.At(n[:2]).Set(n[3:], first)
	}
	return root
}

// TestChunksAreNoPartOfTrees makes the same trees publicly and in two domains, where large files are
// cut differently. FS hashes, layers and their digests are the same, and nothing differs.
func TestChunksAreNoPartOfTrees(t *testing.T) {
	s := open(t, t.TempDir())
	a, b := domainOf(t, 1), domainOf(t, 2)
	all := s.in(nil, a, b)
	domains := []*seal.Domain{nil, a, b}
	trees, next := []turnstone.TreeRef{}, []turnstone.TreeRef{}
	layers, encoded := []turnstone.Digest{}, [][]byte{}
	for _, d := range domains {
		batch := begin(t, s.in(d, a, b))
		ref, err := tree.Build(t.Context(), batch, treeOf(t, "/a/f"), tree.BuildOptions{})
		check(t, err)
		trees = append(trees, ref)
		// The turn changes nothing in the file, and gives it further names, before and after.
		upper := treeOf(t, "/a/f", "/a/b", "/z/z")
		ref, _, err = layer.Apply(t.Context(), batch, trees[0], upper, layer.Options{})
		check(t, err)
		next = append(next, ref)
		sum, err := layer.Digest(t.Context(), batch, trees[0], ref)
		check(t, err)
		var out bytes.Buffer
		check(t, layer.Encode(t.Context(), batch, trees[0], ref, &out))
		layers, encoded = append(layers, sum), append(encoded, out.Bytes())
		check(t, batch.Flush(t.Context()))
		check(t, batch.Close())
	}
	for i := range domains {
		if trees[i].Hash != trees[0].Hash || next[i].Hash != next[0].Hash ||
			layers[i] != layers[0] || !bytes.Equal(encoded[i], encoded[0]) {
			t.Errorf("domain %d has another FS hash or layer", i)
		}
		if i > 0 && trees[i].Root == trees[0].Root {
			t.Errorf("domain %d does not cut by itself", i)
		}
		for _, ref := range []turnstone.TreeRef{trees[i], next[i]} {
			check(t, tree.NewVerifier(all).Verify(t.Context(), ref))
			for _, other := range append(trees, next...) {
				if other.Hash != ref.Hash {
					continue
				}
				for c, err := range tree.Diff(t.Context(), all, ref, other) {
					check(t, err)
					t.Errorf("trees of domains differ at %s", c.Path)
				}
			}
		}
		// A copy of the parent's file is no difference, in whatever domain the parent was made.
		batch := begin(t, s.in(a, b))
		again, stats, err := layer.Apply(t.Context(), batch, trees[i], treeOf(t, "/a/f"),
			layer.Options{})
		check(t, err)
		if again != trees[i] || stats.Changed != 0 {
			t.Errorf("a copy of the file changes the tree: %+v", stats)
		}
	}
}
