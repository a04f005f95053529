package tree_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func diff(t testing.TB, g tree.Getter, a, b turnstone.TreeRef) []tree.Change {
	t.Helper()
	var out []tree.Change
	for c, err := range tree.Diff(context.Background(), g, a, b) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// line returns a change such as "~ /etc/passwd".
func line(c tree.Change) string {
	sign := "~"
	switch {
	case c.Old == nil:
		sign = "+"
	case c.New == nil:
		sign = "-"
	}
	text := sign + " " + c.Path
	if !slices.Equal(c.OldLinks, c.NewLinks) {
		text += " links(" + strings.Join(c.OldLinks, " ") + " → " +
			strings.Join(c.NewLinks, " ") + ")"
	}
	return text
}

func lines(cs []tree.Change) []string {
	out := []string{}
	for _, c := range cs {
		out = append(out, line(c))
	}
	return out
}

func TestDiff(t *testing.T) {
	base := []treetest.File{
		{Path: "/", MTime: 1},
		{Path: "/a", Data: "a"},
		{Path: "/d/x", Data: "x"},
		{Path: "/d/sub/y", Data: "y"},
		{Path: "/d-e", Data: "de"},
		{Path: "/l1", Data: "linked"},
		{Path: "/l2", Link: "/l1"},
	}
	edit := func(path string, f func(*treetest.File)) []treetest.File {
		out := slices.Clone(base)
		for i := range out {
			if out[i].Path == path {
				f(&out[i])
			}
		}
		return out
	}
	without := func(prefix string) []treetest.File {
		return slices.DeleteFunc(slices.Clone(base), func(f treetest.File) bool {
			return strings.HasPrefix(f.Path, prefix)
		})
	}
	for _, test := range []struct {
		name  string
		files []treetest.File
		want  []string
	}{
		{"nothing", base, []string{}},
		{"content", edit("/d/x", func(f *treetest.File) { f.Data = "z" }), []string{"~ /d/x"}},
		{"mode", edit("/d/sub/y", func(f *treetest.File) { f.Mode = 0o600 }),
			[]string{"~ /d/sub/y"}},
		{"time", edit("/a", func(f *treetest.File) { f.Nsec = 1 }), []string{"~ /a"}},
		{"top", edit("/", func(f *treetest.File) { f.MTime = 2 }), []string{"~ /"}},
		{"removed directory", without("/d/"), []string{"- /d", "- /d/sub", "- /d/sub/y", "- /d/x"}},
		{"added, in order", append(slices.Clone(base), treetest.File{Path: "/d/sub/z"},
			treetest.File{Path: "/d!"}, treetest.File{Path: "/d/a"}),
			[]string{"+ /d!", "+ /d/a", "+ /d/sub/z"}},
		{"directory becomes a file", append(without("/d/"), treetest.File{Path: "/d"}),
			[]string{"~ /d", "- /d/sub", "- /d/sub/y", "- /d/x"}},
		{"file becomes a directory", append(without("/a"), treetest.File{Path: "/a/b/c"}),
			[]string{"~ /a", "+ /a/b", "+ /a/b/c"}},
		{"both are changed", edit("/l1", func(f *treetest.File) { f.Data = "other" }),
			[]string{"~ /l1", "~ /l2"}},
		{"link becomes a copy", edit("/l2", func(f *treetest.File) {
			f.Link, f.Data = "", "linked"
		}),
			[]string{"~ /l1 links(/l1 /l2 → )", "~ /l2 links(/l1 /l2 → )"}},
		{"a third name, below", append(slices.Clone(base),
			treetest.File{Path: "/d/sub/l3", Link: "/l1"}),
			[]string{"+ /d/sub/l3 links( → /d/sub/l3 /l1 /l2)",
				"~ /l1 links(/l1 /l2 → /d/sub/l3 /l1 /l2)",
				"~ /l2 links(/l1 /l2 → /d/sub/l3 /l1 /l2)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := treetest.NewStore()
			a, b := treetest.Make(t, s, base...), treetest.Make(t, s, test.files...)
			if got := lines(diff(t, s, a, b)); !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
			back := diff(t, s, b, a)
			if len(back) != len(test.want) {
				t.Errorf("the other way: %q", lines(back))
			}
		})
	}
}

// TestDiffGoesIntoEqualDirectories is the only case in which Diff reads two equal directories: the
// names of their files are grouped differently.
func TestDiffGoesIntoEqualDirectories(t *testing.T) {
	s := treetest.NewStore()
	same := func(path, link string) treetest.File {
		return treetest.File{Path: path, Data: "same", Link: link}
	}
	a := treetest.Make(t, s, same("/d/1", ""), same("/d/2", "/d/1"), same("/e/3", ""),
		same("/e/4", "/e/3"), same("/f/5", ""))
	b := treetest.Make(t, s, same("/d/1", ""), same("/d/2", ""), same("/e/3", "/d/1"),
		same("/e/4", "/d/2"), same("/f/5", ""))
	got := lines(diff(t, s, a, b))
	want := []string{"~ /d/1 links(/d/1 /d/2 → /d/1 /e/3)", "~ /d/2 links(/d/1 /d/2 → /d/2 /e/4)",
		"~ /e/3 links(/e/3 /e/4 → /d/1 /e/3)", "~ /e/4 links(/e/3 /e/4 → /d/2 /e/4)"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestDiffIsWhatTheListsSay compares with a diff of two complete listings.
func TestDiffIsWhatTheListsSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := treetest.Files().Draw(rt, "files")
		other := treetest.Edited(files).Draw(rt, "other")
		if rapid.IntRange(0, 4).Draw(rt, "unrelated") == 0 {
			other = treetest.Files().Draw(rt, "other files")
		}
		s := treetest.NewStore()
		a, b := treetest.Make(t, s, files...), treetest.Make(t, s, other...)
		la, lb := whole(t, s, a), whole(t, s, b)
		var want []string
		for p, line := range la {
			if lb[p] == "" {
				want = append(want, p)
			} else if lb[p] != line {
				want = append(want, p)
			}
		}
		for p := range lb {
			if la[p] == "" {
				want = append(want, p)
			}
		}
		slices.Sort(want)
		var got []string
		for _, c := range diff(t, s, a, b) {
			got = append(got, c.Path)
			checkSide(rt, s, a, c.Path, c.Old)
			checkSide(rt, s, b, c.Path, c.New)
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("got %q, want %q", got, want)
		}
	})
}

func checkSide(rt *rapid.T, g tree.Getter, ref turnstone.TreeRef, path string, e *tree.Entry) {
	have, err := tree.Lookup(context.Background(), g, ref, path)
	if (err == nil) != (e != nil) {
		rt.Fatalf("%q: %v, %v", path, err, e)
	}
	if e != nil && (!have.Attr.Equal(&e.Attr) || have.Content != e.Content ||
		have.Tree != e.Tree || have.Hash != e.Hash) {
		rt.Fatalf("%q: %v, not %v", path, e, have)
	}
}

// whole returns a line for each path with everything that Diff compares.
func whole(t testing.TB, g tree.Getter, ref turnstone.TreeRef) map[string]string {
	t.Helper()
	ctx := context.Background()
	r, err := tree.GetRoot(ctx, g, ref)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	if err := tree.Walk(ctx, g, ref, "/", func(p string, e *tree.Entry) error {
		line, err := treetest.Line(ctx, g, p, e)
		for _, group := range r.Links {
			if slices.Contains(group, p) {
				line += fmt.Sprintf(" %q", group)
			}
		}
		out[p] = line
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDiffCanBeEnded(t *testing.T) {
	s := treetest.NewStore()
	a, b := treetest.Make(t, s), treetest.Make(t, s, sample()...)
	n := 0
	for _, err := range tree.Diff(context.Background(), s, a, b) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d changes", n)
	}
}

func TestDamagedObjectsAreFound(t *testing.T) {
	ctx := context.Background()
	files := append(sample(), treetest.File{Path: "/other/file", Data: "x"})
	s := treetest.NewStore()
	empty, ref := treetest.Make(t, s), treetest.Make(t, s, files...)
	if err := tree.NewVerifier(s).Verify(ctx, ref); err != nil {
		t.Fatal(err)
	}
	reached := s.Objects()
	list, err := tree.Lookup(ctx, s, ref, "/\xff\xfe")
	if err != nil {
		t.Fatal(err)
	}
	other, err := tree.GetRoot(ctx, s, empty)
	if err != nil {
		t.Fatal(err)
	}
	reached = slices.DeleteFunc(reached, func(d turnstone.Digest) bool {
		return d == list.Content.Chunks || d == empty.Root || d == other.Tree
	})
	if len(reached) != 5 { // the root and four directories
		t.Fatalf("%d objects", len(reached))
	}
	for _, d := range reached {
		s := treetest.NewStore()
		treetest.Make(t, s)
		treetest.Make(t, s, files...)
		s.Damage(d)
		if err := tree.NewVerifier(s).Verify(ctx,
			ref); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("Verify: %v", err)
		}
		none := func(string, *tree.Entry) error { return nil }
		if err := tree.Walk(ctx, s, ref, "/", none); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("Walk: %v", err)
		}
		var last error
		for _, err := range tree.Diff(ctx, s, empty, ref) {
			last = err
		}
		if turnstone.KindOf(last) != turnstone.KindIntegrity {
			t.Errorf("Diff: %v", last)
		}
		s.Remove(d)
		if err := tree.NewVerifier(s).Verify(ctx,
			ref); turnstone.KindOf(err) != turnstone.KindNotFound {
			t.Errorf("Verify without it: %v", err)
		}
	}
}

func TestVerifyFindsWhatIsNotTrue(t *testing.T) {
	ctx := context.Background()
	s := treetest.NewStore()
	ref := treetest.Make(t, s, treetest.File{Path: "/d/f", Data: "1"},
		treetest.File{Path: "/d/g", Data: "2"}, treetest.File{Path: "/e/f", Data: "1"})
	for name, lie := range map[string]func(r *tree.Root){
		"directory's hash": func(r *tree.Root) { r.Hash = turnstone.DigestBytes(nil) },
		"link to nothing": func(r *tree.Root) {
			r.Links = []tree.LinkGroup{{"/d/f", "/none"}}
		},
		"link to another":     func(r *tree.Root) { r.Links = []tree.LinkGroup{{"/d/f", "/d/g"}} },
		"link of a directory": func(r *tree.Root) { r.Links = []tree.LinkGroup{{"/d", "/e"}} },
		"link below a file": func(r *tree.Root) {
			r.Links = []tree.LinkGroup{{"/d/f", "/d/g/f"}}
		},
		"link below a link": func(r *tree.Root) {
			r.Links = []tree.LinkGroup{{"/d/f", "/d/f/f"}}
		},
		"name in two groups": func(r *tree.Root) {
			r.Links = []tree.LinkGroup{{"/d/f", "/e/f"}, {"/d/g", "/e/f"}}
		},
		"directory that loops": func(r *tree.Root) {
			r.Tree = turnstone.DigestBytes([]byte("none"))
		},
	} {
		r, err := tree.GetRoot(ctx, s, ref)
		if err != nil {
			t.Fatal(err)
		}
		lie(r)
		bad, err := tree.PutRoot(ctx, s, r)
		if err != nil {
			t.Fatal(err)
		}
		want := turnstone.KindIntegrity
		if strings.Contains(name, "loops") {
			want = turnstone.KindNotFound
		}
		if err := tree.NewVerifier(s).Verify(ctx, bad); turnstone.KindOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A Verifier does not read known parts again, and does not confuse trees.
	v := tree.NewVerifier(s)
	linked, err := tree.GetRoot(ctx, s, ref)
	if err != nil {
		t.Fatal(err)
	}
	linked.Links = []tree.LinkGroup{{"/d/f", "/e/f"}}
	good, err := tree.PutRoot(ctx, s, linked)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, r := range []turnstone.TreeRef{ref, good} {
			if err := v.Verify(ctx, r); err != nil {
				t.Error(err)
			}
		}
		if err := v.Verify(ctx, turnstone.TreeRef{Root: good.Root,
			Hash: ref.Hash}); turnstone.KindOf(err) != turnstone.KindIntegrity {
			t.Errorf("a tree with the FS hash of another: %v", err)
		}
	}
	wrong := ref
	wrong.Hash = turnstone.DigestBytes(nil)
	if _, err := tree.GetRoot(ctx, s, wrong); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("%v", err)
	}
}

func FuzzDecodeDirectory(f *testing.F) {
	s := treetest.NewStore()
	treetest.Make(f, s, sample()...)
	for _, d := range s.Objects() {
		b, _ := s.Get(context.Background(), d)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := tree.DecodeDirectory(b)
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Fatalf("%v", err)
			}
			return
		}
		if err := d.Check(); err != nil {
			t.Fatalf("decoded, but: %v", err)
		}
		if again := d.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

func FuzzDecodeRoot(f *testing.F) {
	s := treetest.NewStore()
	treetest.Make(f, s, sample()...)
	for _, d := range s.Objects() {
		b, _ := s.Get(context.Background(), d)
		f.Add(b, []byte("l\x01"))
	}
	chunk := []byte("l\x01")
	var links []tree.LinkGroup
	for i := range 2000 {
		links = append(links, tree.LinkGroup{fmt.Sprintf("/a/%05d", i), fmt.Sprintf("/b/%05d", i)})
	}
	r := tree.Root{Entry: tree.Entry{Attr: tree.Attr{Type: tree.Dir},
		Tree: turnstone.DigestBytes(nil), Hash: turnstone.DigestBytes(nil)}, Links: links}
	root, chunks := r.Encode()
	f.Add(root, chunks[0])
	f.Add(root, chunk)
	f.Fuzz(func(t *testing.T, b, links []byte) {
		r, err := tree.DecodeRoot(b, func(turnstone.Digest) ([]byte, error) { return links, nil })
		if err != nil {
			if turnstone.KindOf(err) != turnstone.KindIntegrity {
				t.Fatalf("%v", err)
			}
			return
		}
		if err := r.Check(); err != nil {
			t.Fatalf("decoded, but: %v", err)
		}
		if again, _ := r.Encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// large returns a tree of dirs directories with files each.
func large(b *testing.B, s *treetest.Store, dirs, files int) turnstone.TreeRef {
	b.Helper()
	ctx := context.Background()
	content, err := s.PutContent(ctx, strings.NewReader("x"), 1)
	if err != nil {
		b.Fatal(err)
	}
	var top tree.Directory
	for i := range dirs {
		var d tree.Directory
		for j := range files {
			d = append(d, tree.Entry{Name: fmt.Sprintf("file-%06d", j),
				Attr: tree.Attr{Type: tree.File, Mode: 0o644, Size: 1,
					MTime: tree.Time{Sec: int64(i*files + j)}}, Content: content})
		}
		e := tree.Entry{Name: fmt.Sprintf("dir-%06d", i),
			Attr: tree.Attr{Type: tree.Dir, Mode: 0o755}}
		if e.Tree, e.Hash, err = tree.PutDirectory(ctx, s, d); err != nil {
			b.Fatal(err)
		}
		top = append(top, e)
	}
	r := &tree.Root{Entry: tree.Entry{Attr: tree.Attr{Type: tree.Dir, Mode: 0o755}}}
	if r.Tree, r.Hash, err = tree.PutDirectory(ctx, s, top); err != nil {
		b.Fatal(err)
	}
	ref, err := tree.PutRoot(ctx, s, r)
	if err != nil {
		b.Fatal(err)
	}
	return ref
}

// touched returns the tree with 10 files changed.
func touched(b *testing.B, s *treetest.Store, ref turnstone.TreeRef) turnstone.TreeRef {
	b.Helper()
	ctx := context.Background()
	r, err := tree.GetRoot(ctx, s, ref)
	if err != nil {
		b.Fatal(err)
	}
	top, err := tree.GetDirectory(ctx, s, r.Tree)
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10 {
		e := &top[i*len(top)/10]
		d, err := tree.GetDirectory(ctx, s, e.Tree)
		if err != nil {
			b.Fatal(err)
		}
		d[(i*len(d)/10+i)%len(d)].MTime.Nsec = int32(i + 1)
		if e.Tree, e.Hash, err = tree.PutDirectory(ctx, s, d); err != nil {
			b.Fatal(err)
		}
	}
	if r.Tree, r.Hash, err = tree.PutDirectory(ctx, s, top); err != nil {
		b.Fatal(err)
	}
	out, err := tree.PutRoot(ctx, s, r)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// unchecked is a Getter without cost, so that only Diff is measured.
type unchecked map[turnstone.Digest][]byte

func (u unchecked) Get(_ context.Context, d turnstone.Digest) ([]byte, error) {
	if b, ok := u[d]; ok {
		return b, nil
	}
	return nil, io.ErrUnexpectedEOF
}

// BenchmarkDiff compares two trees of 200,000 files that differ in 10.
func BenchmarkDiff(b *testing.B) {
	for _, shape := range []struct{ dirs, files int }{{2000, 100}, {20000, 10}, {1, 200_000}} {
		b.Run(fmt.Sprintf("%dx%d", shape.dirs, shape.files), func(b *testing.B) {
			s := treetest.NewStore()
			from := large(b, s, shape.dirs, shape.files)
			to := touched(b, s, from)
			g := unchecked{}
			for _, d := range s.Objects() {
				o, err := s.Get(context.Background(), d)
				if err != nil {
					b.Fatal(err)
				}
				g[d] = o
			}
			b.ReportAllocs()
			for b.Loop() {
				if n := len(diff(b, g, from, to)); n != 10 {
					b.Fatalf("%d changes", n)
				}
			}
		})
	}
}
