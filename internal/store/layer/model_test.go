package layer_test

import (
	"bytes"
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// change makes a random change of the overlay's view.
func change(t *rapid.T, o *overlay) {
	names := rapid.SampledFrom([]string{"a", "b", "c", "a-", "a0", "\xff"})
	var path []string
	for d := o.root; len(path) < 3; {
		var dirs []string
		for name, c := range d.children {
			if c.attr.Type == tree.Dir {
				dirs = append(dirs, name)
			}
		}
		slices.Sort(dirs)
		if len(dirs) == 0 || rapid.IntRange(0, 2).Draw(t, "deeper") == 0 {
			break
		}
		name := rapid.SampledFrom(dirs).Draw(t, "dir")
		path, d = append(path, name), d.children[name]
	}
	name := names.Draw(t, "name")
	d := o.dir(path, true)
	there := d.children[name]
	data := rapid.SampledFrom([]string{"", "x", "y", "long content"}).Draw(t, "data")
	op := rapid.SampledFrom([]string{"write", "write", "mkdir", "mkdir",
		"mkdir", "remove", "remove",
		"symlink", "fifo", "device", "socket", "chmod", "copy", "link", "link", "link", "link", "rename", "xattr",
		"again", "again", "move", "move", "move"}).Draw(t, "op")
	set := func(n *merged) {
		d.children[name] = n
		o.touch(d)
	}
	switch {
	case op == "write" && there != nil && there.attr.Type == tree.File:
		n := o.copyUp(d, name)
		o.touch(n)
		n.data = []byte(data)
	case op == "write" && there == nil:
		set(o.node(tree.File, data))
	case op == "mkdir" && there == nil:
		set(o.node(tree.Dir, ""))
	case op == "symlink" && there == nil:
		n := o.node(tree.Symlink, "")
		n.attr.Mode, n.attr.Target = 0o777, "t"+data
		set(n)
	case op == "fifo" && there == nil:
		set(o.node(tree.FIFO, ""))
	case op == "device" && there == nil:
		n := o.node(tree.Block, "")
		n.attr.Major, n.attr.Minor = 8, uint32(len(data))
		set(n)
	case op == "socket" && there == nil:
		set(o.node(0, ""))
	case op == "remove" && there != nil:
		delete(d.children, name)
		o.touch(d)
	case op == "again" && there != nil && there.attr.Type == tree.Dir:
		// removed and created again, the same or different
		n := o.node(tree.Dir, "")
		n.attr = there.attr
		for _, c := range slices.Sorted(maps.Keys(there.children)) {
			if old := there.children[c]; old.attr.Type == tree.File &&
				rapid.Bool().Draw(t, "same") {
				o.inos++
				again := *old
				again.upper, again.ino = true, o.inos
				n.children[c] = &again
			}
		}
		d.children[name] = n
	case op == "chmod" && there != nil && there.attr.Type != tree.Symlink:
		o.copyUp(d, name).attr.Mode ^= 0o110
	case op == "move" && there != nil && there.attr.Type == tree.Dir:
		other := names.Draw(t, "other")
		to := o.dir(path[:len(path)/2], true)
		if to.children[other] == nil {
			delete(d.children, name)
			to.children[other] = there
			there.upper, there.moved = true, there.lower != nil
			o.touch(d)
			o.touch(to)
		}
	case op == "copy" && there != nil:
		o.copyUp(d, name)
	case op == "xattr" && there != nil && there.attr.Type == tree.File:
		n := o.copyUp(d, name)
		n.attr.Xattrs = []tree.Xattr{{Name: "user.note", Value: []byte(data)}}
	case op == "link" && there != nil && there.attr.Type != tree.Dir:
		other := names.Draw(t, "other")
		to := o.dir(path[:len(path)/2], true)
		if to.children[other] == nil {
			to.children[other] = o.copyUp(d, name)
			o.touch(to)
		}
	case op == "rename" && there != nil && there.attr.Type != tree.Dir:
		other := names.Draw(t, "other")
		to := o.dir(path[:len(path)/2], true)
		if old := to.children[other]; old == nil || old.attr.Type != tree.Dir {
			n := o.copyUp(d, name)
			delete(d.children, name)
			to.children[other] = n
			o.touch(d)
			o.touch(to)
		}
	}
}

// Apply's result for an upper directory is the tree of the overlay's view, its figures are those of
// the difference, and unchanged parts cost nothing.
func TestApplyIsTheMergedView(t *testing.T) {
	// rapid's default of a hundred checks finds too little.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		must(t, checks.Value.Set("1500"))
		defer func() { must(t, checks.Value.Set(checks.DefValue)) }()
	}
	rapid.Check(t, func(r *rapid.T) {
		ctx := t.Context()
		w := treetest.NewStore()
		o := newOverlay()
		for range rapid.IntRange(0, 40).Draw(r, "before") {
			change(r, o)
		}
		parent, err := tree.Build(ctx, w, o.view(false), tree.BuildOptions{})
		if err != nil {
			r.Fatal(err)
		}
		o.settle()
		for range rapid.IntRange(0, 40).Draw(r, "after") {
			change(r, o)
		}
		want, err := tree.Build(ctx, w, o.view(false), tree.BuildOptions{})
		if err != nil {
			r.Fatal(err)
		}
		got, stats, err := layer.Apply(ctx, w, parent, o.view(true), layer.Options{Parallel: 2})
		if err != nil {
			r.Fatal(err)
		}
		if got != want {
			r.Fatalf("got\n%s\nwant\n%s\nparent\n%s", dump(t, w, got),
				dump(t, w, want), dump(t, w, parent))
		}
		var counted layer.Stats
		for c, err := range tree.Diff(ctx, w, parent, got) {
			switch {
			case err != nil:
				r.Fatal(err)
			case c.Old == nil:
				counted.Added++
			case c.New == nil:
				counted.Removed++
			default:
				counted.Changed++
			}
		}
		if counted.Bytes = stats.Bytes; counted != stats {
			r.Fatalf("stats %+v, the difference has %+v", stats, counted)
		}
		checkEncoding(t, r, w, parent, got)
	})
}

// checkEncoding checks that the layer between two trees leads from one to the other, and is empty
// only for equal trees.
func checkEncoding(t *testing.T, r *rapid.T, w tree.Getter, a, b turnstone.TreeRef) {
	var out bytes.Buffer
	if err := layer.Encode(t.Context(), w, a, b, &out); err != nil {
		r.Fatal(err)
	}
	if (out.Len() == 0) != (a == b) {
		r.Fatalf("a layer of %d bytes between %v and %v", out.Len(), a, b)
	}
	got, err := decode(out.Bytes(), flat(t, w, a))
	if err != nil {
		r.Fatal(err)
	}
	if diff := difference(got, flat(t, w, b)); diff != "" {
		r.Fatalf("the layer does not lead there:\n%s", diff)
	}
}

func dump(t *testing.T, r tree.Reader, ref turnstone.TreeRef) string {
	return strings.Join(treetest.List(t, r, ref), "\n")
}
