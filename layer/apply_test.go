package layer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/layer"
	"turnstone.dev/turnstone/tree"
	"turnstone.dev/turnstone/tree/treetest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// files makes a tree of files in memory: a path that ends in "/" is a directory,
// a text that begins with "->" a link's target.
func files(entries map[string]string) *mem {
	ino := uint64(1)
	at := tree.Time{Sec: 1700000000, Nsec: 5}
	root := &mem{attr: tree.Attr{Type: tree.Dir, Mode: 0o755, MTime: at}, children: map[string]*mem{}, ino: ino}
	for path, text := range entries {
		d := root
		path, isDir := strings.CutSuffix(path, "/")
		elems := strings.Split(strings.TrimPrefix(path, "/"), "/")
		for i, name := range elems {
			n := d.children[name]
			if n == nil {
				ino++
				n = &mem{attr: tree.Attr{Type: tree.Dir, Mode: 0o755, MTime: at}, children: map[string]*mem{}, ino: ino, names: 1}
				d.children[name] = n
			}
			d = n
			if i == len(elems)-1 && !isDir {
				n.children, n.attr.Type, n.attr.Mode, n.data = nil, tree.File, 0o644, []byte(text)
				if target, ok := strings.CutPrefix(text, "->"); ok {
					n.attr.Type, n.attr.Mode, n.attr.Target, n.data = tree.Symlink, 0o777, target, nil
				}
			}
		}
	}
	return root
}

func (m *mem) at(path string) *mem {
	for _, name := range strings.Split(strings.Trim(path, "/"), "/") {
		m = m.children[name]
	}
	return m
}

func (m *mem) xattr(name, value string) {
	m.attr.Xattrs = append(m.attr.Xattrs, tree.Xattr{Name: name, Value: []byte(value)})
}

func whiteout() *mem { return &mem{attr: tree.Attr{Type: tree.Char}, names: 9, ino: 77} }

func build(t testing.TB, w tree.Writer, root *mem) tree.Ref {
	t.Helper()
	ref, err := tree.Build(t.Context(), w, root, tree.BuildOptions{})
	must(t, err)
	return ref
}

func apply(t testing.TB, w tree.Writer, parent tree.Ref, upper *mem, opts layer.Options) (tree.Ref, layer.Stats) {
	t.Helper()
	ref, stats, err := layer.Apply(t.Context(), w, parent, upper, opts)
	must(t, err)
	return ref, stats
}

// counting is a writer that counts what is put.
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

// What the agent leaves in an upper directory that nobody has written to is nothing.
func TestUntouched(t *testing.T) {
	w := &counting{Writer: treetest.NewStore()}
	for name, parent := range map[string]map[string]string{
		"template":      {"/etc/hostname": "template", "/etc/passwd": "root", "/usr/bin/true": "ELF"},
		"no identity":   {"/etc/passwd": "root"},
		"no etc at all": {"/bin/true": "ELF"},
	} {
		ref := build(t, w, files(parent))
		upper := files(map[string]string{"/etc/hostname": "sandbox", "/etc/hosts": "127.0.0.1"})
		upper.attr.MTime.Sec += 1000
		upper.at("/etc").attr.MTime.Sec += 1000
		w.puts = 0
		got, stats := apply(t, w, ref, upper, layer.Options{Skip: skip})
		if got != ref || stats != (layer.Stats{}) || w.puts != 0 {
			t.Errorf("%s: %v of %v, %+v, %d objects put", name, got, ref, stats, w.puts)
		}
	}
}

// A file that was copied up and is as it was makes no difference, though it is read.
func TestCopiedUp(t *testing.T) {
	w := &counting{Writer: treetest.NewStore()}
	all := map[string]string{"/a/b/c": "text", "/a/b/d": "more", "/x": "->y"}
	ref := build(t, w, files(all))
	upper := files(map[string]string{"/a/b/c": "text", "/x": "->y"})
	upper.at("/a/b/c").xattr("trusted.overlay.origin", "\x00\xfb")
	upper.at("/a").xattr("trusted.overlay.impure", "y")
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
	upper.at("/etc").xattr("trusted.overlay.opaque", "y")
	got, stats := apply(t, w, build(t, w, files(parent)), upper, layer.Options{Skip: skip})
	want := build(t, w, files(map[string]string{"/etc/hostname": "template", "/etc/group": "wheel"}))
	if got != want || stats != (layer.Stats{Added: 1, Removed: 1, Bytes: 5}) {
		t.Errorf("%s\n%+v", dump(t, w, got), stats)
	}
}

// The time of /etc is the agent's when nothing in it came or went, else the turn's.
func TestTimesOfTheAgentsDirectories(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/etc/a": "1", "/usr/a": "1"}))
	upper := files(map[string]string{"/etc/a": "2", "/usr/a": "2"})
	for _, dir := range []string{"/etc", "/usr"} {
		upper.at(dir).attr.MTime.Sec++
	}
	upper.attr.MTime.Sec++
	got, _ := apply(t, w, ref, upper, layer.Options{})
	after := files(map[string]string{"/etc/a": "2", "/usr/a": "2"})
	after.at("/usr").attr.MTime.Sec++
	if want := build(t, w, after); got != want {
		t.Errorf("same names:\n%s", dump(t, w, got))
	}
	upper.at("/etc").children["new"] = files(map[string]string{"x": ""}).at("x")
	got, _ = apply(t, w, ref, upper, layer.Options{})
	after.at("/etc").children["new"] = upper.at("/etc/new")
	after.at("/etc").attr.MTime.Sec++
	if want := build(t, w, after); got != want {
		t.Errorf("a new name:\n%s", dump(t, w, got))
	}
}

func TestWhiteouts(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/a": "1", "/b": "1", "/c": "1", "/d/x/y": "1", "/e": "1"}))
	upper := files(map[string]string{"/b": "", "/keep": ""})
	upper.children["a"] = whiteout()
	upper.children["d"] = whiteout()
	upper.children["nothing"] = whiteout()
	upper.at("/b").xattr("trusted.overlay.whiteout", "")
	upper.children["c"] = &mem{ino: 5, names: 1} // a socket
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
	linked := func(root *mem, paths ...string) *mem {
		first := root.at(paths[0])
		first.names = uint32(len(paths))
		for _, p := range paths[1:] {
			i := strings.LastIndexByte(p, '/')
			d := root
			if i > 0 {
				d = root.at(p[:i])
			}
			d.children[p[i+1:]] = first
		}
		return root
	}
	ref := build(t, w, linked(files(map[string]string{"/a": "1", "/d/x": "", "/z": "1"}), "/a", "/b", "/d/c"))
	for name, tc := range map[string]struct {
		upper, want *mem
		stats       layer.Stats
	}{
		"copied up, leaves the group": {files(map[string]string{"/a": "1"}),
			linked(files(map[string]string{"/a": "1", "/b": "1", "/d/x": "", "/z": "1"}), "/b", "/d/c"), layer.Stats{Changed: 3, Bytes: 1}},
		"all copied up": {linked(files(map[string]string{"/a": "1", "/d/": ""}), "/a", "/b", "/d/c"),
			linked(files(map[string]string{"/a": "1", "/d/x": "", "/z": "1"}), "/a", "/b", "/d/c"), layer.Stats{Bytes: 1}},
		"another name": {linked(files(map[string]string{"/z": "1"}), "/z", "/zz"),
			linked(linked(files(map[string]string{"/a": "1", "/d/x": "", "/z": "1"}), "/a", "/b", "/d/c"), "/z", "/zz"), layer.Stats{Added: 1, Changed: 1, Bytes: 1}},
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
	upper.children["d"] = whiteout()
	upper.children["b"] = whiteout()
	got, _ := apply(t, w, ref, upper, layer.Options{})
	if want := build(t, w, files(map[string]string{"/a": "1", "/z": "1"})); got != want {
		t.Errorf("a group of one:\n%s", dump(t, w, got))
	}
}

// What a sandbox's overlay, mounted as it is, never makes.
func TestRefused(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/a": "1"}))
	deep := files(nil)
	for d, i := deep, 0; i < 5000; i++ {
		n := files(nil)
		d.children["d"], d = n, n
	}
	with := func(name string) *mem {
		m := files(map[string]string{"/d/f": "x"})
		m.at("/d/f").xattr(name, "/elsewhere")
		return m
	}
	odd := func(name string) *mem {
		m := files(nil)
		m.children[name] = files(map[string]string{"f": ""}).at("f")
		return m
	}
	for name, tc := range map[string]struct {
		upper *mem
		opts  layer.Options
		kind  turnstone.Kind
	}{
		"redirect":     {upper: with("trusted.overlay.redirect"), kind: turnstone.Invalid},
		"metacopy":     {upper: with("trusted.overlay.metacopy"), kind: turnstone.Invalid},
		"a file":       {upper: files(map[string]string{"f": ""}).at("f"), kind: turnstone.Integrity},
		"slash":        {upper: odd("a/b"), kind: turnstone.Integrity},
		"nul":          {upper: odd("a\x00"), kind: turnstone.Integrity},
		"dots":         {upper: odd(".."), kind: turnstone.Integrity},
		"no name":      {upper: odd(""), kind: turnstone.Integrity},
		"long name":    {upper: odd(strings.Repeat("n", 256)), kind: turnstone.Integrity},
		"deep":         {upper: deep, kind: turnstone.Exhausted},
		"many entries": {upper: files(map[string]string{"a": "", "b": "", "c": ""}), opts: layer.Options{MaxEntries: 3}, kind: turnstone.Exhausted},
		"long names":   {upper: files(map[string]string{strings.Repeat("n", 100): ""}), opts: layer.Options{MaxMeta: 99}, kind: turnstone.Exhausted},
		"attributes":   {upper: with("user.x"), opts: layer.Options{MaxMeta: 20}, kind: turnstone.Exhausted},
	} {
		_, _, err := layer.Apply(t.Context(), w, ref, tc.upper, tc.opts)
		if err == nil || turnstone.KindOf(err) != tc.kind || turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v of kind %s", name, err, turnstone.KindOf(err))
		}
	}
}

// The hooks see every name, attribute and byte that is taken, and can refuse it.
func TestHooks(t *testing.T) {
	w := treetest.NewStore()
	ref := build(t, w, files(map[string]string{"/etc/hostname": "template"}))
	upper := files(map[string]string{"/etc/hostname": "sandbox", "/a": "the content", "/l": "->target"})
	upper.at("/a").xattr("user.note", "value")
	upper.at("/a").xattr("trusted.overlay.origin", "x")
	upper.children["b"] = upper.at("/a")
	upper.at("/a").names = 2
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
	if got, want := strings.Join(seen, "|"), "/ |/a user.note=value|/b user.note=value|/etc |/l target"; got != want {
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

// endless is a file whose content goes on for as long as anybody reads.
type endless struct{ *mem }

func (e endless) Attr() (tree.Attr, error) {
	a, err := e.mem.Attr()
	a.Size = 1 << 60
	return a, err
}

func (e endless) Open() (io.ReadCloser, error) { return io.NopCloser(forever{}), nil }

type forever struct{}

func (forever) Read(b []byte) (int, error) { return min(len(b), 512), nil }

// discarding keeps no contents.
type discarding struct{ tree.Writer }

func (discarding) PutContent(_ context.Context, r io.Reader, size int64) (tree.Content, error) {
	_, err := io.CopyN(io.Discard, r, size)
	return tree.Content{}, err
}

// Apply ends with its context, and with the first error, though it reads a file that never ends.
func TestEnds(t *testing.T) {
	w := discarding{treetest.NewStore()}
	ref := build(t, w.Writer, files(nil))
	upper := &wrapped{files(map[string]string{"/endless": ""}), map[string]tree.Node{}}
	upper.with["endless"] = endless{upper.at("/endless")}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := layer.Apply(ctx, w, ref, upper, layer.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	upper.mem.children["z"] = files(map[string]string{"f": ""}).at("f")
	upper.at("/z").xattr("trusted.overlay.redirect", "x")
	if _, _, err := layer.Apply(t.Context(), w, ref, upper, layer.Options{}); turnstone.KindOf(err) != turnstone.Invalid {
		t.Errorf("error %v", err)
	}
}

// wrapped is a directory of which some entries are others.
type wrapped struct {
	*mem
	with map[string]tree.Node
}

func (w *wrapped) Children(ctx context.Context) ([]tree.Child, error) {
	out, err := w.mem.Children(ctx)
	for i, c := range out {
		if n := w.with[c.Name]; n != nil {
			out[i].Node = n
		}
	}
	return out, err
}
