package tree_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// sample contains an example of everything.
func sample() []treetest.File {
	return []treetest.File{
		{Path: "/", Mode: 0o755, MTime: 5},
		{Path: "/bin/", Mode: 0o700},
		{Path: "/bin/sh", Mode: 0o4755, Data: "#!", MTime: -3, Nsec: 7, Xattrs: map[string]string{
			"user.note": "hi", "security.capability": "\x01", "trusted.t": "t", "user.a": ""}},
		{Path: "/bin/sh2", Link: "/bin/sh"},
		{Path: "/bin-x", Target: "bin/sh", UID: 3},
		{Path: "/dev/null", Type: tree.Char, Mode: 0o666, Major: 1, Minor: 3},
		{Path: "/dev/disk", Type: tree.Block, Mode: 0o660, Major: 8, Minor: 1 << 19, GID: 6},
		{Path: "/p", Type: tree.FIFO, Mode: 0o600},
		{Path: "/\xff\xfe", Data: strings.Repeat("0123456789", 10000)},
		{Path: "/" + strings.Repeat("n", 255)},
	}
}

func TestBuildHoldsAllThatAFileIs(t *testing.T) {
	s := treetest.NewStore()
	got := treetest.List(t, s, treetest.Make(t, s, sample()...))
	want := []string{
		`d 0755 0:0 @5.0 /`,
		`d 0700 0:0 @0.0 /bin`,
		`l 0777 3:0 @0.0 /bin-x -> bin/sh`,
		`f 4755 0:0 @-3.7 /bin/sh security.capability="\x01" trusted.t="t" user.a="" user.note="hi" "#!" same as /bin/sh`,
		`f 4755 0:0 @-3.7 /bin/sh2 security.capability="\x01" trusted.t="t" user.a="" user.note="hi" "#!" same as /bin/sh`,
		`d 0755 0:0 @0.0 /dev`,
		`b 0660 0:6 @0.0 /dev/disk 8,524288`,
		`c 0666 0:0 @0.0 /dev/null 1,3`,
		`f 0644 0:0 @0.0 /` + strings.Repeat("n", 255) + ` ""`,
		`p 0600 0:0 @0.0 /p`,
		`f 0644 0:0 @0.0 "/\xff\xfe" 100000 ` +
			turnstone.DigestBytes(bytes.Repeat([]byte("0123456789"), 10000)).Short(),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// shuffled is a Node whose children are in another order.
type shuffled struct{ tree.Node }

func (n shuffled) Children(ctx context.Context) ([]tree.Child, error) {
	kids, err := n.Node.Children(ctx)
	kids = slices.Clone(kids)
	rand.Shuffle(len(kids), func(i, j int) { kids[i], kids[j] = kids[j], kids[i] })
	for i := range kids {
		kids[i].Node = shuffled{kids[i].Node}
	}
	return kids, err
}

func TestTheSameFilesMakeTheSameTree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := treetest.Files().Draw(rt, "files")
		ctx := context.Background()
		n, err := treetest.NewNode(files...)
		if err != nil {
			rt.Fatal(err)
		}
		a, err := tree.Build(ctx, treetest.NewStore(), n, tree.BuildOptions{Parallel: 1})
		if err != nil {
			rt.Fatal(err)
		}
		b, err := tree.Build(ctx, tree.NewHasher(), shuffled{n}, tree.BuildOptions{Parallel: 3})
		if err != nil {
			rt.Fatal(err)
		}
		// The hasher does not cut contents, and the store names chunks of large contents.
		if a.Hash != b.Hash {
			rt.Fatalf("FS hashes %s and %s", a.Hash, b.Hash)
		}
		c, err := tree.Build(ctx, treetest.NewStore(), shuffled{n}, tree.BuildOptions{Parallel: 3})
		if err != nil || a != c {
			rt.Fatalf("%v and %v: %v", a, c, err)
		}
	})
}

func TestEncodingIsAnIdentity(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := treetest.NewStore()
		ref := treetest.Make(t, s, treetest.Files().Draw(rt, "files")...)
		for _, d := range s.Objects() {
			b, err := s.Get(context.Background(), d)
			if err != nil {
				rt.Fatal(err)
			}
			if b[0] != 'd' {
				continue
			}
			dir, err := tree.DecodeDirectory(b)
			if err != nil || !bytes.Equal(dir.Encode(), b) {
				rt.Fatalf("%v, %x became %x", err, b, dir.Encode())
			}
			if err := dir.Check(); err != nil {
				rt.Fatalf("what was decoded does not pass Check: %v", err)
			}
		}
		r, err := tree.GetRoot(context.Background(), s, ref)
		if err != nil {
			rt.Fatal(err)
		}
		again, err := tree.PutRoot(context.Background(), s, r)
		if err != nil || again != ref {
			rt.Fatalf("%v, %v became %v", err, ref, again)
		}
	})
}

// TestTheHashCoversWhatItSays makes single changes.
func TestTheHashCoversWhatItSays(t *testing.T) {
	hash := func(f treetest.File, more ...treetest.File) turnstone.Digest {
		return treetest.Make(t, treetest.NewStore(), append([]treetest.File{f}, more...)...).Hash
	}
	base := treetest.File{Path: "/f", Data: "data", Xattrs: map[string]string{"user.a": "1"}}
	change := func(f func(*treetest.File)) turnstone.Digest {
		c := base
		f(&c)
		return hash(c)
	}
	differs := map[string]turnstone.Digest{
		"name":      change(func(f *treetest.File) { f.Path = "/g" }),
		"directory": change(func(f *treetest.File) { f.Path = "/d/f" }),
		"type":      change(func(f *treetest.File) { f.Type = tree.FIFO }),
		"mode":      change(func(f *treetest.File) { f.Mode = 0o4644 }),
		"uid":       change(func(f *treetest.File) { f.UID = 1 }),
		"gid":       change(func(f *treetest.File) { f.GID = 1 }),
		"content":   change(func(f *treetest.File) { f.Data = "dat0" }),
		"size":      change(func(f *treetest.File) { f.Data = "" }),
		"user xattr": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.a": "2"}
		}),
		"user xattr name": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.b": "1"}
		}),
		"no xattr": change(func(f *treetest.File) { f.Xattrs = nil }),
		"capability": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.a": "1", "security.capability": "x"}
		}),
		"symlink":          hash(treetest.File{Path: "/f", Target: "x"}),
		"symlink's target": hash(treetest.File{Path: "/f", Target: "y"}),
		"device":           hash(treetest.File{Path: "/f", Type: tree.Char, Major: 1}),
		"device's major":   hash(treetest.File{Path: "/f", Type: tree.Char, Major: 2}),
		"device's minor":   hash(treetest.File{Path: "/f", Type: tree.Char, Major: 1, Minor: 1}),
		"block device":     hash(treetest.File{Path: "/f", Type: tree.Block, Major: 1}),
		"top mode":         hash(base, treetest.File{Path: "/", Mode: 0o700}),
		"top owner":        hash(base, treetest.File{Path: "/", UID: 1}),
		"top xattr": hash(base,
			treetest.File{Path: "/", Xattrs: map[string]string{"user.a": ""}}),
		"another name": hash(base, treetest.File{Path: "/g", Link: "/f"}),
		"a copy": hash(base,
			treetest.File{Path: "/g", Data: "data", Xattrs: base.Xattrs}),
		"an empty dir": hash(base, treetest.File{Path: "/g/"}),
		"nothing":      hash(base),
	}
	seen := map[turnstone.Digest]string{}
	for what, h := range differs {
		if other := seen[h]; other != "" {
			t.Errorf("%s and %s have the same FS hash", what, other)
		}
		seen[h] = what
	}
	same := map[string]turnstone.Digest{
		"mtime":     change(func(f *treetest.File) { f.MTime, f.Nsec = 5, 6 }),
		"top mtime": hash(base, treetest.File{Path: "/", MTime: 9}),
		"trusted": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.a": "1", "trusted.x": "x"}
		}),
		"acl": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.a": "1", "system.posix_acl_access": "x"}
		}),
		"not kept": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.a": "1", "security.selinux": "x"}
		}),
		"of overlays": change(func(f *treetest.File) {
			f.Xattrs = map[string]string{"user.a": "1", "trusted.overlay.origin": "x"}
		}),
	}
	for what, h := range same {
		if h != differs["nothing"] {
			t.Errorf("the FS hash covers %s", what)
		}
	}
}

func TestLinksBeyondOneObject(t *testing.T) {
	ctx := context.Background()
	s := treetest.NewStore()
	root := func(n int) *tree.Root {
		d, h, err := tree.PutDirectory(ctx, s, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := &tree.Root{Entry: tree.Entry{Attr: tree.Attr{Type: tree.Dir, Mode: 0o755},
			Tree: d, Hash: h}}
		for i := range n {
			r.Links = append(r.Links, tree.LinkGroup{fmt.Sprintf("/a/%07d", i),
				fmt.Sprintf("/b/%07d", i)})
		}
		return r
	}
	for _, n := range []int{0, 1, 100, 700, 5000, 100_000} {
		r := root(n)
		ref, err := tree.PutRoot(ctx, s, r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tree.GetRoot(ctx, s, ref)
		if err != nil || len(got.Links) != n ||
			!slices.EqualFunc(got.Links, r.Links, slices.Equal[tree.LinkGroup]) {
			t.Fatalf("%d groups: %v, %d came back", n, err, len(got.Links))
		}
	}
	// Removing a group costs few objects.
	before := len(s.Objects())
	r := root(100_000)
	r.Links = slices.Delete(r.Links, 40_000, 40_001)
	if _, err := tree.PutRoot(ctx, s, r); err != nil {
		t.Fatal(err)
	}
	if more := len(s.Objects()) - before; more > 4 {
		t.Errorf("a table that differs in one group has %d new objects", more)
	}
}

func TestBuildRefusesWhatNoFileSystemHas(t *testing.T) {
	dir := func(kids ...tree.Child) *treetest.Node {
		return &treetest.Node{A: tree.Attr{Type: tree.Dir, Mode: 0o755},
			ID: rand.Uint64(), Names: 1, Kids: kids}
	}
	file := func(size int64, data string) *treetest.Node {
		return &treetest.Node{A: tree.Attr{Type: tree.File, Size: size}, ID: rand.Uint64(),
			Names: 1, Data: []byte(data)}
	}
	attr := func(a tree.Attr) tree.Node { return &treetest.Node{A: a, ID: rand.Uint64(), Names: 1} }
	loop := dir()
	loop.Kids = []tree.Child{{Name: "d", Node: dir(tree.Child{Name: "again", Node: loop})}}
	deep := dir()
	for range tree.MaxDepth + 1 {
		deep = dir(tree.Child{Name: "d", Node: deep})
	}
	broken := file(1, "x")
	broken.Err = io.ErrNoProgress
	for _, test := range []struct {
		name string
		root tree.Node
		want string
		kind turnstone.Kind
	}{
		{"loop", loop, "/d/again: is a directory with two paths, or inside itself",
			turnstone.KindInvalid},
		{"too deep", deep, "is more than 4096 directories deep", turnstone.KindInvalid},
		{"file at the top", file(0, ""), "/: is not a directory", turnstone.KindInvalid},
		{"name twice", dir(tree.Child{Name: "x", Node: file(0, "")},
			tree.Child{Name: "x", Node: file(0, "")}), `/: has two entries with the name "x"`,
			turnstone.KindInvalid},
		{"no name", dir(tree.Child{Name: "", Node: file(0, "")}),
			"a name is empty", turnstone.KindInvalid},
		{"dots", dir(tree.Child{Name: "..", Node: file(0, "")}),
			`".." is not a valid name`, turnstone.KindInvalid},
		{"slash", dir(tree.Child{Name: "a/b", Node: file(0, "")}),
			"contains a slash", turnstone.KindInvalid},
		{"long name", dir(tree.Child{Name: strings.Repeat("x", 256), Node: file(0, "")}),
			"more than 255", turnstone.KindInvalid},
		{"short content", dir(tree.Child{Name: "f", Node: file(5, "1234")}),
			"/f: its size changed", turnstone.KindInvalid},
		{"long content", dir(tree.Child{Name: "f", Node: file(5, "123456")}),
			"/f: its size changed", turnstone.KindInvalid},
		{"negative size", dir(tree.Child{Name: "f", Node: file(-1, "")}),
			"/f: size -1", turnstone.KindInvalid},
		{"unknown type", dir(tree.Child{Name: "f", Node: attr(tree.Attr{Type: 9})}),
			"/f: unknown type 9", turnstone.KindInvalid},
		{"symlink to nothing",
			dir(tree.Child{Name: "f", Node: attr(tree.Attr{Type: tree.Symlink})}),
			"/f: only a symlink can have a target, and must have one", turnstone.KindInvalid},
		{"device numbers",
			dir(tree.Child{Name: "f", Node: attr(tree.Attr{Type: tree.Char, Major: 4096})}),
			"/f: 4096:0 are no", turnstone.KindInvalid},
		{"time",
			dir(tree.Child{Name: "f",
				Node: attr(tree.Attr{Type: tree.FIFO, MTime: tree.Time{Nsec: -1}})}),
			"/f: -1 is not a valid number", turnstone.KindInvalid},
		{"attribute twice",
			dir(tree.Child{Name: "f",
				Node: attr(tree.Attr{Type: tree.FIFO,
					Xattrs: []tree.Xattr{{Name: "user.a"}, {Name: "user.a"}}})}),
			"/f: the extended attribute",
			turnstone.KindInvalid},
		{"large attribute",
			dir(tree.Child{Name: "f",
				Node: attr(tree.Attr{Type: tree.FIFO,
					Xattrs: []tree.Xattr{{Name: "user.a", Value: make([]byte, 1<<17)}}})}),
			"/f: the extended attribute", turnstone.KindInvalid},
		{"failing disk", dir(tree.Child{Name: "f", Node: broken}), `/: "f": multiple Read calls`,
			turnstone.KindUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := tree.Build(context.Background(), treetest.NewStore(),
				test.root, tree.BuildOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want) ||
				turnstone.KindOf(err) != test.kind {
				t.Errorf("%v (%s), want %q (%s)", err, turnstone.KindOf(err), test.want, test.kind)
			}
		})
	}
}

func TestBuildSkipsAndCounts(t *testing.T) {
	n, err := treetest.NewNode(sample()...)
	if err != nil {
		t.Fatal(err)
	}
	n.Kids = append(n.Kids, tree.Child{Name: "socket", Node: &treetest.Node{ID: 1 << 40, Names: 1}})
	var counts tree.Counts
	s := treetest.NewStore()
	ref, err := tree.Build(context.Background(), s, n, tree.BuildOptions{Counts: &counts,
		Skip:   func(p string) bool { return p == "/dev/disk" },
		Adjust: func(a *tree.Attr) { a.UID = 42 }})
	if err != nil {
		t.Fatal(err)
	}
	if want := (tree.Counts{Dirs: 3, Files: 4, Symlinks: 1, Others: 2, Links: 1, Skipped: 2,
		Bytes: 100002}); counts != want {
		t.Errorf("%+v, want %+v", counts, want)
	}
	for _, line := range treetest.List(t, s, ref) {
		if !strings.Contains(line, " 42:") || strings.Contains(line, "disk") ||
			strings.Contains(line, "socket") {
			t.Error(line)
		}
	}
}

func TestBuildEndsWithItsContext(t *testing.T) {
	n, err := treetest.NewNode(sample()...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tree.Build(ctx, treetest.NewStore(), n,
		tree.BuildOptions{}); turnstone.KindOf(err) != turnstone.KindCanceled {
		t.Errorf("%v", err)
	}
}

func TestLookupAndResolve(t *testing.T) {
	ctx := context.Background()
	s := treetest.NewStore()
	ref := treetest.Make(t, s,
		treetest.File{Path: "/etc/passwd", Data: "root"},
		treetest.File{Path: "/usr/bin/sh", Data: "#!"},
		treetest.File{Path: "/bin", Target: "usr/bin"},
		treetest.File{Path: "/abs", Target: "/bin/../../etc/passwd"},
		treetest.File{Path: "/usr/up", Target: "../../../etc"},
		treetest.File{Path: "/loop", Target: "loop"},
		treetest.File{Path: "/dangling", Target: "nowhere"})
	for name, want := range map[string]string{ // by Lookup, then by Resolve; empty: not found
		"/":             "/ /",
		"":              "/ /",
		"/etc/passwd":   "passwd /etc/passwd",
		"etc/./passwd/": "passwd /etc/passwd",
		"/bin":          "bin /usr/bin",
		"/bin/sh":       "- /usr/bin/sh",
		"/abs":          "abs /etc/passwd", // as for a process, "/bin/.." is "/usr"
		"/etc/passwd/.": "passwd -",
		"/usr/up/..":    "usr /",
		"/usr/up":       "up /etc",
		"/dangling":     "dangling -",
		"/etc/passwd/x": "- -",
		"/none":         "- -",
		"/loop":         "loop -",
	} {
		got := "-"
		if e, err := tree.Lookup(ctx, s, ref, name); err == nil {
			got = e.Name
			if got == "" {
				got = "/"
			}
		} else if turnstone.KindOf(err) != turnstone.KindNotFound ||
			!errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup %q: %v", name, err)
		}
		if p, _, err := tree.Resolve(ctx, s, ref, name); err == nil {
			got += " " + p
		} else {
			got += " -"
			if k := turnstone.KindOf(err); name == "/loop" && k != turnstone.KindInvalid ||
				name != "/loop" && k != turnstone.KindNotFound {
				t.Errorf("Resolve %q: %v", name, err)
			}
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestWalkIsSortedAndCanStop(t *testing.T) {
	ctx := context.Background()
	rapid.Check(t, func(rt *rapid.T) {
		s := treetest.NewStore()
		ref := treetest.Make(t, s, treetest.Files().Draw(rt, "files")...)
		var paths []string
		if err := tree.Walk(ctx, s, ref, "/", func(p string, e *tree.Entry) error {
			paths = append(paths, p)
			have, err := tree.Lookup(ctx, s, ref, p)
			if err != nil || !have.Attr.Equal(&e.Attr) ||
				have.Content != e.Content || have.Tree != e.Tree {
				rt.Fatalf("%q: %v", p, err)
			}
			return nil
		}); err != nil {
			rt.Fatal(err)
		}
		if !slices.IsSorted(paths) || len(slices.Compact(slices.Clone(paths))) != len(paths) {
			rt.Fatalf("not sorted, or not unique: %q", paths)
		}
	})
	s := treetest.NewStore()
	ref := treetest.Make(t, s, sample()...)
	visit := func(dir, at string, stop error) (paths []string, err error) {
		err = tree.Walk(ctx, s, ref, dir, func(p string, _ *tree.Entry) error {
			paths = append(paths, p)
			if p == at {
				return stop
			}
			return nil
		})
		return paths, err
	}
	if got, err := visit("/bin/", "", nil); err != nil ||
		!slices.Equal(got, []string{"/bin", "/bin/sh", "/bin/sh2"}) {
		t.Errorf("%q %v", got, err)
	}
	if got, err := visit("/", "/bin", fs.SkipDir); err != nil || slices.Contains(got, "/bin/sh") ||
		!slices.Contains(got, "/p") {
		t.Errorf("SkipDir: %q %v", got, err)
	}
	if got, err := visit("/", "/bin/sh", fs.SkipAll); err != nil || len(got) != 4 {
		t.Errorf("SkipAll: %q %v", got, err)
	}
	if _, err := visit("/", "/bin/sh", io.ErrClosedPipe); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
	if _, err := visit("/none", "", nil); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
}
