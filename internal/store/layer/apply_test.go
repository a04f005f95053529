package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/layer"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// files returns a tree of files in memory: a path that ends in "/" is a directory, a text that
// begins with "->" a link's target.
func files(entries map[string]string) *treetest.Node {
	const sec, nsec = 1700000000, 5
	list := []treetest.File{{Path: "/", MTime: sec, Nsec: nsec}}
	for _, p := range slices.Sorted(maps.Keys(entries)) {
		for d := path.Dir("/" + strings.Trim(p, "/")); d != "/"; d = path.Dir(d) {
			list = append(list, treetest.File{Path: d + "/", MTime: sec, Nsec: nsec})
		}
		f := treetest.File{Path: p, MTime: sec, Nsec: nsec, Data: entries[p]}
		if target, ok := strings.CutPrefix(f.Data, "->"); ok {
			f.Data, f.Target = "", target
		}
		list = append(list, f)
	}
	root, err := treetest.NewNode(list...)
	if err != nil {
		panic(err) // the entries are the test's own
	}
	return root
}

func whiteout() *treetest.Node {
	return &treetest.Node{A: tree.Attr{Type: tree.Char}, Names: 9, ID: 77}
}

func build(t testing.TB, w tree.Writer, root *treetest.Node) turnstone.TreeRef {
	t.Helper()
	ref, err := tree.Build(t.Context(), w, root, tree.BuildOptions{})
	must(t, err)
	return ref
}

func apply(t testing.TB, w tree.Writer, parent turnstone.TreeRef, upper *treetest.Node,
	opts layer.Options) (turnstone.TreeRef, layer.Stats) {
	t.Helper()
	ref, stats, err := layer.Apply(t.Context(), w, parent, upper, opts)
	must(t, err)
	return ref, stats
}

// counting is a writer that counts puts.
type counting struct {
	tree.Writer
	mu   sync.Mutex
	puts int
}

func (c *counting) Put(ctx context.Context, b []byte) (turnstone.Digest, error) {
	c.mu.Lock()
	c.puts++
	c.mu.Unlock()
	return c.Writer.Put(ctx, b)
}

var identity = map[string]bool{"/etc/hostname": true, "/etc/hosts": true}

func skip(path string) bool { return identity[path] }

// The agent's own entries in an otherwise unused upper directory result in no change.
func TestUntouched(t *testing.T) {
	w := &counting{Writer: treetest.NewStore()}
	for name, parent := range map[string]map[string]string{
		"template": {"/etc/hostname": "template",
			"/etc/passwd": "root", "/usr/bin/true": "ELF"},
		"no identity":   {"/etc/passwd": "root"},
		"no etc at all": {"/bin/true": "ELF"},
	} {
		ref := build(t, w, files(parent))
		upper := files(map[string]string{"/etc/hostname": "sandbox", "/etc/hosts": "127.0.0.1"})
		upper.A.MTime.Sec += 1000
		upper.At("/etc").A.MTime.Sec += 1000
		w.puts = 0
		got, stats := apply(t, w, ref, upper, layer.Options{Skip: skip})
		if got != ref || stats != (layer.Stats{}) || w.puts != 0 {
			t.Errorf("%s: %v of %v, %+v, %d objects put", name, got, ref, stats, w.puts)
		}
	}
}

// A copied-up and unchanged file makes no difference, though it is read.
func TestCopiedUp(t *testing.T) {
	w := &counting{Writer: treetest.NewStore()}
	all := map[string]string{"/a/b/c": "text", "/a/b/d": "more", "/x": "->y"}
	ref := build(t, w, files(all))
	upper := files(map[string]string{"/a/b/c": "text", "/x": "->y"})
	upper.At("/a/b/c").AddXattr("trusted.overlay.origin", "\x00\xfb")
	upper.At("/a").AddXattr("trusted.overlay.impure", "y")
	w.puts = 0
	got, stats := apply(t, w, ref, upper, layer.Options{})
	if got != ref || stats != (layer.Stats{Bytes: 4}) {
		t.Errorf("%v of %v, %+v", got, ref, stats)
	}
}

func TestIdentityStaysTheParents(t *testing.T) {
	w := treetest.NewStore()
	parent := map[string]string{"/etc/hostname": "template", "/etc/passwd": "root"}
	upper := files(map[string]string{"/etc/hostname": "sandbox", "/etc/group": "wheel"})
	upper.At("/etc").AddXattr("trusted.overlay.opaque", "y")
	got, stats := apply(t, w, build(t, w, files(parent)), upper, layer.Options{Skip: skip})
	want := build(t, w,
		files(map[string]string{"/etc/hostname": "template", "/etc/group": "wheel"}))
	if got != want || stats != (layer.Stats{Added: 1, Removed: 1, Bytes: 5}) {
		t.Errorf("%s\n%+v", dump(t, w, got), stats)
	}
}

// The time of /etc is the agent's if no name in it was added or removed, else the turn's.
func TestTimesOfTheAgentsDirectories(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/etc/a": "1", "/usr/a": "1"}))
	upper := files(map[string]string{"/etc/a": "2", "/usr/a": "2"})
	for _, dir := range []string{"/etc", "/usr"} {
		upper.At(dir).A.MTime.Sec++
	}
	upper.A.MTime.Sec++
	got, _ := apply(t, w, ref, upper, layer.Options{})
	after := files(map[string]string{"/etc/a": "2", "/usr/a": "2"})
	after.At("/usr").A.MTime.Sec++
	if want := build(t, w, after); got != want {
		t.Errorf("same names:\n%s", dump(t, w, got))
	}
	upper.At("/etc").Set("new", files(map[string]string{"x": ""}).At("x"))
	got, _ = apply(t, w, ref, upper, layer.Options{})
	after.At("/etc").Set("new", upper.At("/etc/new"))
	after.At("/etc").A.MTime.Sec++
	if want := build(t, w, after); got != want {
		t.Errorf("a new name:\n%s", dump(t, w, got))
	}
}

func TestWhiteouts(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w,
		files(map[string]string{"/a": "1", "/b": "1", "/c": "1", "/d/x/y": "1", "/e": "1"}))
	upper := files(map[string]string{"/b": "", "/keep": ""})
	upper.Set("a", whiteout())
	upper.Set("d", whiteout())
	upper.Set("nothing", whiteout())
	upper.At("/b").AddXattr("trusted.overlay.whiteout", "")
	upper.Set("c", &treetest.Node{ID: 5, Names: 1}) // a socket
	got, stats := apply(t, w, ref, upper, layer.Options{})
	if want := build(t, w, files(map[string]string{"/e": "1", "/keep": ""})); got != want {
		t.Errorf("%s", dump(t, w, got))
	}
	if stats != (layer.Stats{Added: 1, Removed: 6}) {
		t.Errorf("%+v", stats)
	}
}

func TestHardLinks(t *testing.T) {
	w := treetest.NewStore()
	linked := func(root *treetest.Node, paths ...string) *treetest.Node {
		first := root.At(paths[0])
		first.Names = uint32(len(paths))
		for _, p := range paths[1:] {
			i := strings.LastIndexByte(p, '/')
			d := root
			if i > 0 {
				d = root.At(p[:i])
			}
			d.Set(p[i+1:], first)
		}
		return root
	}
	ref := build(t, w, linked(files(map[string]string{"/a": "1", "/d/x": "", "/z": "1"}),
		"/a", "/b", "/d/c"))
	for name, tc := range map[string]struct {
		upper, want *treetest.Node
		stats       layer.Stats
	}{
		"copied up, leaves the group": {files(map[string]string{"/a": "1"}),
			linked(files(map[string]string{"/a": "1", "/b": "1", "/d/x": "", "/z": "1"}), "/b",
				"/d/c"), layer.Stats{Changed: 3, Bytes: 1}},
		"all copied up": {linked(files(map[string]string{"/a": "1", "/d/": ""}),
			"/a", "/b", "/d/c"),
			linked(files(map[string]string{"/a": "1", "/d/x": "", "/z": "1"}), "/a", "/b", "/d/c"),
			layer.Stats{Bytes: 1}},
		"another name": {linked(files(map[string]string{"/z": "1"}), "/z", "/zz"),
			linked(linked(files(map[string]string{"/a": "1", "/d/x": "", "/z": "1"}), "/a", "/b",
				"/d/c"), "/z", "/zz"), layer.Stats{Added: 1, Changed: 1, Bytes: 1}},
	} {
		got, stats := apply(t, w, ref, tc.upper, layer.Options{})
		if want := build(t, w, tc.want); got != want || stats != tc.stats {
			t.Errorf("%s: %+v\n%s\nwant\n%s", name, stats, dump(t, w, got), dump(t, w, want))
		}
		if (got == ref) != (tc.stats.Changed == 0) {
			t.Errorf("%s: is the parent: %v", name, got == ref)
		}
	}
	upper := files(nil)
	upper.Set("d", whiteout())
	upper.Set("b", whiteout())
	got, _ := apply(t, w, ref, upper, layer.Options{})
	if want := build(t, w, files(map[string]string{"/a": "1", "/z": "1"})); got != want {
		t.Errorf("a group of one:\n%s", dump(t, w, got))
	}
}

// Upper directories that a sandbox's overlay, with its mount options, never produces.
func TestRefused(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/a": "1", "/p/q/r/f": "2"}))
	// renamed has a directory for each of paths, which says that it was renamed from there.
	renamed := func(paths ...string) *treetest.Node {
		m := files(nil)
		for i, from := range paths {
			n := files(nil)
			n.AddXattr("trusted.overlay.redirect", from)
			m.Set(fmt.Sprint("n", i), n)
		}
		return m
	}
	deep := files(nil)
	for d, i := deep, 0; i < 5000; i++ {
		n := files(nil)
		d.Set("d", n)
		d = n
	}
	with := func(name string) *treetest.Node {
		m := files(map[string]string{"/d/f": "x"})
		m.At("/d/f").AddXattr(name, "/elsewhere")
		return m
	}
	odd := func(name string) *treetest.Node {
		m := files(nil)
		m.Set(name, files(map[string]string{"f": ""}).At("f"))
		return m
	}
	for name, tc := range map[string]struct {
		upper *treetest.Node
		opts  layer.Options
		kind  turnstone.Kind
	}{
		"redirect":        {upper: with("trusted.overlay.redirect"), kind: turnstone.KindInvalid},
		"metacopy":        {upper: with("trusted.overlay.metacopy"), kind: turnstone.KindInvalid},
		"renamed twice":   {upper: renamed("/p", "/p"), kind: turnstone.KindIntegrity},
		"renamed by name": {upper: renamed("p", "/p"), kind: turnstone.KindIntegrity},
		"renamed whole":   {upper: renamed("/"), kind: turnstone.KindIntegrity},
		"renamed above":   {upper: renamed("/p/../p"), kind: turnstone.KindIntegrity},
		"renamed dots":    {upper: renamed(".."), kind: turnstone.KindIntegrity},
		"renamed in each other": {upper: renamed("/p", "/p/q", "/p/q/r"),
			opts: layer.Options{MaxEntries: 6}, kind: turnstone.KindExhausted},
		"a file": {upper: files(map[string]string{"f": ""}).At("f"),
			kind: turnstone.KindIntegrity},
		"slash":     {upper: odd("a/b"), kind: turnstone.KindIntegrity},
		"nul":       {upper: odd("a\x00"), kind: turnstone.KindIntegrity},
		"dots":      {upper: odd(".."), kind: turnstone.KindIntegrity},
		"no name":   {upper: odd(""), kind: turnstone.KindIntegrity},
		"long name": {upper: odd(strings.Repeat("n", 256)), kind: turnstone.KindIntegrity},
		"deep":      {upper: deep, kind: turnstone.KindExhausted},
		"many entries": {upper: files(map[string]string{"a": "", "b": "", "c": ""}),
			opts: layer.Options{MaxEntries: 3}, kind: turnstone.KindExhausted},
		"large file": {upper: files(map[string]string{"a": "12345"}),
			opts: layer.Options{MaxFile: 4}, kind: turnstone.KindExhausted},
		"long names": {upper: files(map[string]string{strings.Repeat("n", 100): ""}),
			opts: layer.Options{MaxMeta: 99}, kind: turnstone.KindExhausted},
		"attributes": {upper: with("user.x"), opts: layer.Options{MaxMeta: 20},
			kind: turnstone.KindExhausted},
	} {
		_, _, err := layer.Apply(t.Context(), w, ref, tc.upper, tc.opts)
		if err == nil || turnstone.KindOf(err) != tc.kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v of kind %s", name, err, turnstone.KindOf(err))
		}
	}
}

// The hooks see every used name, attribute and byte, and can reject it.
func TestHooks(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/etc/hostname": "template"}))
	upper := files(map[string]string{"/etc/hostname": "sandbox",
		"/a": "the content", "/l": "->target"})
	upper.At("/a").AddXattr("user.note", "value")
	upper.At("/a").AddXattr("trusted.overlay.origin", "x")
	upper.Set("b", upper.At("/a"))
	upper.At("/a").Names = 2
	var mu sync.Mutex
	contents := map[string]*bytes.Buffer{}
	var seen []string
	opts := layer.Options{
		Skip: skip,
		Inspect: func(path string) io.Writer {
			mu.Lock()
			defer mu.Unlock()
			contents[path] = &bytes.Buffer{}
			return contents[path]
		},
		Check: func(path string, a *tree.Attr) error {
			line := path + " " + a.Target
			for _, x := range a.Xattrs {
				line += x.Name + "=" + string(x.Value)
			}
			seen = append(seen, line)
			return nil
		},
	}
	apply(t, w, ref, upper, opts)
	if len(contents) != 1 || contents["/a"].String() != "the content" {
		t.Errorf("inspected %v", contents)
	}
	if got, want := strings.Join(seen, "|"),
		"/ |/a user.note=value|/b user.note=value|/etc |/l target"; got != want {
		t.Errorf("checked %q", got)
	}
	refused := errors.New("a secret")
	opts.Check = func(path string, _ *tree.Attr) error {
		if path == "/l" {
			return refused
		}
		return nil
	}
	if _, _, err := layer.Apply(t.Context(), w, ref, upper, opts); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
	opts.Check = nil
	opts.Inspect = func(string) io.Writer { return failing{refused} }
	if _, _, err := layer.Apply(t.Context(), w, ref, upper, opts); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// endless is a file with infinite content.
type endless struct{ *treetest.Node }

func (e endless) Attr() (tree.Attr, error) {
	a, err := e.Node.Attr()
	a.Size = 1 << 60
	return a, err
}

func (e endless) Open() (io.ReadCloser, error) { return io.NopCloser(forever{}), nil }

type forever struct{}

func (forever) Read(b []byte) (int, error) { return min(len(b), 512), nil }

// discarding keeps no contents.
type discarding struct{ tree.Writer }

func (discarding) PutContent(_ context.Context, r io.Reader, size int64) (turnstone.Content,
	error) {
	_, err := io.CopyN(io.Discard, r, size)
	return turnstone.Content{}, err
}

// Apply ends with its context, and with the first error, even while it reads an infinite file.
func TestEnds(t *testing.T) {
	w := discarding{treetest.NewStore()}
	ref := build(t, w.Writer, files(nil))
	upper := files(map[string]string{"/endless": ""})
	upper.Set("endless", endless{upper.At("/endless")})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	if _, _, err := layer.Apply(ctx, w, ref, upper, layer.Options{}); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	upper.Set("z", files(map[string]string{"f": ""}).At("f"))
	upper.At("/z").AddXattr("trusted.overlay.redirect", "x")
	if _, _, err := layer.Apply(t.Context(), w, ref, upper,
		layer.Options{}); turnstone.KindOf(err) != turnstone.KindInvalid {
		t.Errorf("error %v", err)
	}
}
