package lowerdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/substrate"
)

func writeDifference(t testing.TB, r tree.Reader, from, to turnstone.TreeRef,
	extra ...File) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "image")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := writeImage(t.Context(), r, from, to, uuid("test"), extra, f); err != nil {
		t.Fatalf("%v (%s)", err, turnstone.HintOf(err))
	}
	if st, err := f.Stat(); err != nil || st.Size() != substrate.SlotSize {
		t.Fatalf("the image has %d bytes, %v", st.Size(), err)
	}
	return f
}

// everything has all features of a file system.
func everything() *model {
	linked := fileModel("linked")
	linked.attr.Xattrs = []tree.Xattr{{Name: "user.note", Value: []byte("one inode")}}
	setuid := fileModel("#!/bin/sh\n")
	setuid.attr.Mode, setuid.attr.UID, setuid.attr.GID = 0o6755, 1000, 100_000
	capable := fileModel("x")
	capable.attr.Xattrs = []tree.Xattr{
		{Name: "security.capability", Value: []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0,
			0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{Name: "user.empty", Value: nil},
		{Name: "user.long", Value: bytes.Repeat([]byte{0xff, 0}, 1000)},
	}
	sparse := fileModel(strings.Repeat("\x00", 1<<20) + "end" + strings.Repeat("\x00", 5000))
	old := fileModel("")
	old.attr.MTime = tree.Time{Sec: -86400 * 365}
	future := dirModel(0o1777, map[string]*model{"in": fileModel("y")})
	future.attr.MTime = tree.Time{Sec: 1 << 33, Nsec: 1}
	big := dirModel(0o700, nil)
	for i := range 600 {
		big.children[fmt.Sprintf("%04d-%s", i, strings.Repeat("n", i%200))] = fileModel(
			strings.Repeat("z", i*13))
	}
	deep := dirModel(0o755, nil)
	for at, i := deep, 0; i < 18; i++ {
		next := dirModel(0o755, map[string]*model{"f": fileModel(fmt.Sprint(i))})
		at.children[strings.Repeat("d", 200)] = next
		at = next
	}
	node := func(kind tree.Type, major, minor uint32) *model {
		return &model{attr: tree.Attr{Type: kind, Mode: 0o640, Major: major, Minor: minor,
			MTime: tree.Time{Sec: 7}}}
	}
	link := func(target string) *model {
		return &model{attr: tree.Attr{Type: tree.Symlink, Mode: 0o777, Target: target,
			MTime: tree.Time{Sec: 8}}}
	}
	return dirModel(0o755, map[string]*model{
		"a": linked, "sub": dirModel(0o2755, map[string]*model{"b": linked, "c": linked}),
		"setuid": setuid, "capable": capable,
		"sparse": sparse, "old": old, "future": future, "big": big, "deep": deep,
		"empty": dirModel(0o755, nil),
		"null":  node(tree.Char, 1, 3), "disk": node(tree.Block, 259, 70000),
		"pipe": node(tree.FIFO, 0, 0),
		"link": link("../a b\xff"), "long": link(strings.Repeat("l/", 2000)),
		"\xff\xfe": fileModel("not UTF-8"), strings.Repeat("N", 255): fileModel("long name"),
		" \n\t*": fileModel("odd"),
	})
}

func TestWriteEverything(t *testing.T) {
	m := treetest.NewStore()
	want := everything()
	f := writeDifference(t, m, turnstone.TreeRef{}, want.put(t, m))
	got := mergeLayers([]*layerFile{readLayer(t, 0, f, "fs")}, map[[2]int64]*model{})
	compare(t, got, want)
	st, err := f.Stat()
	if err != nil || onDisk(st) > 6<<20 {
		t.Errorf("the image takes up %d bytes", onDisk(st))
	}
}

func compare(t interface {
	Helper()
	Errorf(string, ...any)
}, got, want *model) {
	t.Helper()
	a, b := got.list(), want.list()
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(a) > 0 && len(b) > 0 && a[0] == b[0]:
			a, b = a[1:], b[1:]
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			t.Errorf("not expected: %.300s", a[0])
			a = a[1:]
		default:
			t.Errorf("missing: %.300s", b[0])
			b = b[1:]
		}
	}
}

// TestStackIsTheTree writes the differences of random histories and expects that the overlay of the
// images shows each tree.
func TestStackIsTheTree(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		m := treetest.NewStore()
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		now := dirModel(0o755, nil)
		var stack []*layerFile
		var from turnstone.TreeRef
		for i := range rapid.IntRange(1, 5).Draw(rt, "turns") {
			now = now.clone(map[*model]*model{})
			for range rapid.IntRange(0, 12).Draw(rt, "changes") {
				mutate(r, now)
			}
			to := now.put(t, m)
			f, err := os.Create(filepath.Join(dir, "image"))
			if err != nil {
				rt.Fatal(err)
			}
			if err := writeImage(t.Context(), m, from, to, uuid("test"), nil, f); err != nil {
				rt.Fatal(err)
			}
			stack = append([]*layerFile{readLayer(t, i, f, "fs")}, stack...)
			_ = f.Close()
			compare(rt, mergeLayers(stack, map[[2]int64]*model{}), now)
			from = to
		}
	})
}

// mutate changes something below m, as a step could.
func mutate(r *rand.Rand, m *model) {
	var dirs, files []*model
	var walk func(d *model)
	walk = func(d *model) {
		dirs = append(dirs, d)
		for _, name := range sortedNames(d) {
			if c := d.children[name]; c.children != nil {
				walk(c)
			} else {
				files = append(files, c)
			}
		}
	}
	walk(m)
	d := dirs[r.IntN(len(dirs))]
	name := string(rune('a' + r.IntN(5)))
	switch r.IntN(10) {
	case 0, 1, 2:
		d.children[name] = fileModel(strings.Repeat("x", r.IntN(3)*r.IntN(3000)) +
			fmt.Sprint(r.IntN(50)))
	case 3, 4:
		d.children[name] = dirModel(0o755, nil)
	case 5:
		delete(d.children, name)
	case 6:
		clear(d.children)
	case 7:
		if len(files) > 0 {
			d.children[name] = files[r.IntN(len(files))]
		}
	case 8:
		d.attr.Mode, d.attr.MTime.Nsec = 0o700|uint32(r.IntN(8)), int32(r.IntN(1000))
	case 9:
		if len(files) > 0 {
			f := files[r.IntN(len(files))]
			f.attr.UID = uint32(r.IntN(3))
			f.attr.Xattrs = []tree.Xattr{{Name: "user.x", Value: []byte{byte(r.IntN(4))}}}
		}
	}
}

func sortedNames(d *model) []string {
	names := make([]string, 0, len(d.children))
	for name := range d.children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestWriteIsDeterministic(t *testing.T) {
	m := treetest.NewStore()
	ref := everything().put(t, m)
	extra := []File{{Path: "turns/1/receipt.md", Data: []byte("receipt")},
		{Path: "index.md", Data: []byte("index")}}
	a, b := writeDifference(t, m, turnstone.TreeRef{}, ref, extra...),
		writeDifference(t, m, turnstone.TreeRef{}, ref, extra[1], extra[0])
	if x, y := start(t, a), start(t, b); !bytes.Equal(x, y) {
		t.Error("the same image twice, and the bytes differ")
	}
}

// start returns the first 8 MiB of an image.
func start(t testing.TB, f *os.File) []byte {
	t.Helper()
	b := make([]byte, 8<<20)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// A change deep in a large tree writes little.
func TestWriteLittle(t *testing.T) {
	m := treetest.NewStore()
	before := everything()
	after := before.clone(map[*model]*model{})
	after.children["sub"].children["b"].content = "changed"
	from := before.put(t, m)
	to := after.put(t, m)
	opened := m.Opens()
	f := writeDifference(t, m, from, to)
	read := m.Opens() - opened
	st, err := f.Stat()
	if err != nil || onDisk(st) > 16<<10 || read != 1 {
		t.Errorf("it takes up %d bytes, and %d files were read", onDisk(st), read)
	}
	var names []string
	for name := range readLayer(t, 0, f, "fs").children {
		names = append(names, name)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "a sub" {
		t.Errorf("at the top: %s", got)
	}
	// No change: only the root.
	if l := readLayer(t, 0, writeDifference(t, m, to, to), "fs"); len(l.children) != 0 ||
		l.attr.Mode != 0o755 {
		t.Errorf("%+v", l)
	}
}

func TestContextFiles(t *testing.T) {
	m := treetest.NewStore()
	c, err := m.PutContent(t.Context(), strings.NewReader("stored"), 6)
	if err != nil {
		t.Fatal(err)
	}
	f := writeDifference(t, m, turnstone.TreeRef{}, turnstone.TreeRef{},
		File{Path: "turns/1/receipt.md", Content: c, MTime: tree.Time{Sec: 5}},
		File{Path: "turns/10/receipt.md", Data: []byte("ten")},
		File{Path: "turns/2/step-1.stdout", Data: nil}, File{Path: "index.md", Data: []byte("old")},
		File{Path: "index.md", Data: []byte("new")})
	var got []string
	top := readLayer(t, 0, f, "context")
	var walk func(path string, l *layerFile)
	walk = func(path string, l *layerFile) {
		if l.attr.Type == tree.File {
			got = append(got, path+"="+l.content)
		}
		for name, c := range l.children {
			walk(path+"/"+name, c)
		}
	}
	walk("", top)
	slices.Sort(got)
	if s := strings.Join(got,
		" "); s != "/index.md=new /turns/1/receipt.md=stored /turns/10/receipt.md=ten "+
		"/turns/2/step-1.stdout=" {
		t.Error(s)
	}
	for _, bad := range []string{"", "/x", "../x", "a/../b", "a//b", "."} {
		if _, err := contextDir(
			[]File{{Path: bad}}); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range [][2]string{{"a", "a/b"}, {"a/b", "a"}, {"a/b/c", "a/b"}} {
		if _, err := contextDir([]File{{Path: bad[0]},
			{Path: bad[1]}}); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// broken opens wrong contents.
type broken struct {
	*treetest.Store
	give func([]byte) io.Reader
}

func (b broken) OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error) {
	r, err := b.Store.OpenContent(ctx, c)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return io.NopCloser(b.give(data)), err
}

func TestWriteRefuses(t *testing.T) {
	m := treetest.NewStore()
	ref := dirModel(0o755, map[string]*model{"f": fileModel(strings.Repeat("content", 2000)),
		"g": fileModel("small")}).put(t, m)
	bad := errors.New("it is damaged")
	for name, give := range map[string]func([]byte) io.Reader{
		"short": func(b []byte) io.Reader { return bytes.NewReader(b[1:]) },
		"long": func(b []byte) io.Reader {
			return io.MultiReader(bytes.NewReader(b), strings.NewReader("x"))
		},
		"error at the end": func(b []byte) io.Reader {
			return io.MultiReader(bytes.NewReader(b), errReader{bad})
		},
	} {
		f, err := os.CreateTemp(t.TempDir(), "image")
		if err != nil {
			t.Fatal(err)
		}
		if err := writeImage(t.Context(), broken{m, give}, turnstone.TreeRef{}, ref, uuid("test"), nil,
			f); err == nil {
			t.Errorf("%s: it is written", name)
		}
		_ = f.Close()
	}
	for name, e := range map[string]tree.Attr{
		"whiteout": {Type: tree.Char, Mode: 0o600},
		"opaque": {Type: tree.FIFO,
			Xattrs: []tree.Xattr{{Name: opaqueXattr, Value: []byte("y")}}},
	} {
		d := difference{ctx: t.Context()}
		if _, err := d.node("/x",
			&tree.Entry{Name: "x", Attr: e}); turnstone.KindOf(err) != turnstone.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := writeImage(ctx, m, turnstone.TreeRef{}, ref, uuid("test"), nil,
		nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestSparseWriter writes random pieces, some of them zeros, and reads them back.
func TestSparseWriter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	f, err := os.CreateTemp(t.TempDir(), "sparse")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	w := newSparseWriter(f)
	var want []byte
	for len(want) < 5<<20 {
		p := make([]byte, r.IntN(3*blockSize))
		if r.IntN(2) == 0 {
			for i := range p {
				p[i] = byte(r.IntN(2))
			}
		}
		want = append(want, p...)
		if n, err := w.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := w.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	copy(want, "begin")
	if _, err := w.Write([]byte("begin")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Flush(), f.Truncate(int64(len(want)))); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back %d bytes of %d, %v, and they differ", len(got), len(want), err)
	}
	if st, err := f.Stat(); err != nil || onDisk(st) > int64(len(want))*9/10 {
		t.Errorf("%d of %d bytes are on disk", onDisk(st), len(want))
	}
}
