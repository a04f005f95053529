package template

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// treeFiles are what the images of these tests hold.
func treeFiles() []treetest.File {
	return []treetest.File{
		{Path: "/", Mode: 0o755},
		{Path: "/bin/", Mode: 0o755, MTime: 1000},
		{Path: "/bin/sh", Mode: 0o4755, Data: "#!", MTime: 1001, Nsec: 5, Xattrs: map[string]string{
			"user.note": "hi", "security.capability": "\x01\x02"}},
		{Path: "/bin/sh2", Link: "/bin/sh"},
		{Path: "/bin-x", Target: "bin/sh", UID: 3, MTime: 9},
		{Path: "/dev/", MTime: 4},
		{Path: "/dev/null", Type: tree.Char, Mode: 0o666, Major: 1, Minor: 300, MTime: 1},
		{Path: "/dev/disk", Type: tree.Block, Mode: 0o660, Major: 8, Minor: 1, GID: 6},
		{Path: "/p", Type: tree.FIFO, Mode: 0o600},
		{Path: "/empty"},
		{Path: "/\xff\xfe", Data: strings.Repeat("0123456789", 10000), UID: 1 << 20},
		{Path: "/page", Data: strings.Repeat("x", 4096)},
		{Path: "/zeros", Data: strings.Repeat("\x00", 50_000) + "end"},
		{Path: "/" + strings.Repeat("n", 255), Data: strings.Repeat("tail", 1500)},
	}
}

// makeTemplate writes files into an image, as a template that is built.
func makeTemplate(t testing.TB, files []treetest.File) (*Store, *Template) {
	t.Helper()
	s := NewStore(t.TempDir())
	dir := filepath.Join(s.dir, "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root.erofs")
	out, err := os.Create(root)
	if err != nil {
		t.Fatal(err)
	}
	w := tar2erofs.New(out, tar2erofs.Options{TempDir: t.TempDir()})
	types := map[tree.Type]byte{tree.File: tar.TypeReg, tree.Dir: tar.TypeDir, tree.Symlink: tar.TypeSymlink,
		tree.Char: tar.TypeChar, tree.Block: tar.TypeBlock, tree.FIFO: tar.TypeFifo}
	node, err := treetest.NewNode(files...)
	if err != nil {
		t.Fatal(err)
	}
	at := func(p string) *treetest.Node {
		n := node
		for _, name := range strings.Split(strings.Trim(p, "/"), "/") {
			if name != "" {
				n = n.Child(name)
			}
		}
		return n
	}
	for _, f := range files {
		n := at(f.Path)
		h := &tar.Header{Name: "./" + strings.TrimPrefix(f.Path, "/"), Typeflag: types[n.A.Type], Mode: int64(n.A.Mode), Uid: int(n.A.UID), Gid: int(n.A.GID),
			Size: n.A.Size, ModTime: time.Unix(n.A.MTime.Sec, int64(n.A.MTime.Nsec)), Linkname: n.A.Target,
			Devmajor: int64(n.A.Major), Devminor: int64(n.A.Minor), PAXRecords: map[string]string{}}
		for _, x := range n.A.Xattrs {
			h.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
		}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, strings.TrimPrefix(f.Link, "/"), 0
		}
		if err := w.Add(h, bytes.NewReader(n.Data)); err != nil {
			t.Fatalf("%q: %v", f.Path, err)
		}
	}
	if err := errors.Join(w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	st, err := filestamp.Of(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	return s, &Template{Name: "test", Root: root, RootDigest: st.Digest, Size: st.Size}
}

// both is a store that finds contents in a template.
type both struct {
	*treetest.Store
	content *Content
}

func (b both) OpenContent(ctx context.Context, c tree.Content) (io.ReadCloser, error) {
	return b.content.OpenContent(ctx, c)
}

func TestTreeOfATemplateIsThatOfItsFiles(t *testing.T) {
	ctx := context.Background()
	s, tmpl := makeTemplate(t, treeFiles())
	store := treetest.NewStore()
	ref, err := s.Tree(ctx, tmpl, store)
	if err != nil {
		t.Fatal(err)
	}
	content := tmpl.Content()
	t.Cleanup(func() { _ = content.Close() })
	direct := treetest.NewStore()
	want := treetest.List(t, direct, treetest.Make(t, direct, treeFiles()...))
	got := treetest.List(t, both{store, content}, ref)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := len(store.Contents()); n > 0 {
		t.Errorf("%d contents were stored", n)
	}
	for _, d := range direct.Contents() {
		if !content.HasContent(d) {
			t.Errorf("%s is not in the image", d)
		}
	}
	// Every byte is where the index says.
	for _, f := range treeFiles() {
		c := tree.Content{Digest: turnstone.DigestBytes([]byte(f.Data)), Size: int64(len(f.Data))}
		if f.Type != 0 || f.Target != "" || f.Link != "" || strings.HasSuffix(f.Path, "/") {
			continue
		}
		r, err := content.OpenContent(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || string(b) != f.Data {
			t.Errorf("%q: %d bytes, %v", f.Path, len(b), err)
		}
		if !content.HasSize(c.Size) {
			t.Errorf("no content of %d bytes", c.Size)
		}
	}
	if content.HasSize(12345) || content.HasContent(turnstone.DigestBytes([]byte("other"))) {
		t.Error("finds what is not there")
	}
	if _, err := content.OpenContent(ctx, tree.Content{Digest: turnstone.DigestBytes([]byte("other")), Size: 5}); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
	if _, err := content.OpenContent(ctx, tree.Content{Digest: turnstone.DigestBytes([]byte("#!")), Size: 5}); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("%v", err)
	}
}

func TestTreeIsReadOnce(t *testing.T) {
	ctx := context.Background()
	s, tmpl := makeTemplate(t, treeFiles())
	if tmpl.Content().HasContent(turnstone.DigestBytes([]byte("#!"))) {
		t.Error("found before Tree")
	}
	var first sync.WaitGroup
	refs := make([]tree.Ref, 4)
	for i := range refs {
		first.Go(func() {
			ref, err := NewStore(s.dir).Tree(ctx, tmpl, treetest.NewStore())
			if err != nil {
				t.Error(err)
			}
			refs[i] = ref
		})
	}
	first.Wait()
	for _, r := range refs {
		if r != refs[0] {
			t.Errorf("%v and %v", r, refs[0])
		}
	}
	before, err := os.Stat(tmpl.treePath())
	if err != nil {
		t.Fatal(err)
	}
	// Without the image's bytes it still is known what the tree is.
	moved := *tmpl
	if err := os.Truncate(tmpl.Root, 0); err != nil {
		t.Fatal(err)
	}
	store := treetest.NewStore()
	ref, err := s.Tree(ctx, &moved, store)
	if err != nil || ref != refs[0] {
		t.Fatalf("%v %v", ref, err)
	}
	_, puts := store.Calls()
	if _, err := s.Tree(ctx, &moved, store); err != nil {
		t.Fatal(err)
	}
	if _, again := store.Calls(); puts == 0 || again != puts {
		t.Errorf("%d objects were put first, then %d", puts, again-puts)
	}
	if after, err := os.Stat(tmpl.treePath()); err != nil || !os.SameFile(before, after) {
		t.Errorf("the index was written again: %v", err)
	}
}

func TestDamagedTreeIndexIsMadeAgain(t *testing.T) {
	ctx := context.Background()
	s, tmpl := makeTemplate(t, treeFiles())
	want, err := s.Tree(ctx, tmpl, treetest.NewStore())
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(tmpl.treePath())
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":   func([]byte) []byte { return nil },
		"short":   func(b []byte) []byte { return b[:len(b)-1] },
		"long":    func(b []byte) []byte { return append(b, 0) },
		"version": func(b []byte) []byte { b[7]++; return b },
		"header":  func(b []byte) []byte { b[120] ^= 1; return b },
		"root":    func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"length":  func(b []byte) []byte { copy(b[bytes.LastIndex(b, []byte("r\x01"))-8:], "\xff\xff\xff\xff"); return b },
	} {
		if err := os.WriteFile(tmpl.treePath(), damage(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		ref, err := s.Tree(ctx, tmpl, treetest.NewStore())
		if err != nil || ref != want {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
	}
	other := *tmpl
	other.RootDigest = turnstone.DigestBytes([]byte("another image"))
	if other.Content().HasContent(turnstone.DigestBytes([]byte("#!"))) {
		t.Error("the index of another image was taken")
	}
}

func TestTreeOfADamagedImage(t *testing.T) {
	s, tmpl := makeTemplate(t, treeFiles())
	if err := os.WriteFile(tmpl.Root, bytes.Repeat([]byte("no"), 10000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tree(context.Background(), tmpl, treetest.NewStore()); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("%v", err)
	}
}

func TestContentAfterClose(t *testing.T) {
	ctx := context.Background()
	s, tmpl := makeTemplate(t, treeFiles())
	if _, err := s.Tree(ctx, tmpl, treetest.NewStore()); err != nil {
		t.Fatal(err)
	}
	c := tmpl.Content()
	d := turnstone.DigestBytes([]byte("#!"))
	if !c.HasContent(d) {
		t.Fatal("not found")
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Fatal(err)
	}
	if c.HasContent(d) {
		t.Error("found after Close")
	}
	if _, err := c.OpenContent(ctx, tree.Content{Digest: d, Size: 2}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func FuzzTreeIndex(f *testing.F) {
	c := placedContent{digest: rawDigest(turnstone.DigestBytes([]byte("x"))), size: 5, extents: []extent{{0, 2}, {-1, 3}}}
	d := turnstone.DigestBytes([]byte("image"))
	f.Add(encodeIndex(d, tree.Ref{Root: d, Hash: d}, []placedContent{c}, [][]byte{[]byte("object")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseIndex(resealed(b))
		if err != nil {
			return
		}
		_ = x.each(func([]byte) error { return nil })
		for i := range len(x.contents) / contentEntry {
			size, extents, err := x.content(i, 100)
			if err != nil {
				continue
			}
			for _, e := range extents {
				size -= e.size
				if !e.within(100) {
					t.Fatal("outside of the image")
				}
			}
			if size != 0 {
				t.Fatal("another size")
			}
		}
		_ = x.hasSize(5)
		x.find(turnstone.DigestBytes([]byte("x")))
	})
}

// resealed gives an index a right digest of its header, so that fuzzing comes further than that.
func resealed(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) >= indexHeader {
		sum := sha256.Sum256(b[:indexHeader-32])
		copy(b[indexHeader-32:], sum[:])
	}
	return b
}

// FuzzTreeImage reads images in which bytes were changed: whatever the reader of the
// format makes of them, building the tree ends, with a tree or with an error.
func FuzzTreeImage(f *testing.F) {
	_, tmpl := makeTemplate(f, []treetest.File{{Path: "/d/a", Data: "a"}, {Path: "/d/b", Link: "/d/a"}, {Path: "/l", Target: "d"},
		{Path: "/page", Data: strings.Repeat("x", 5000)}, {Path: "/x", Xattrs: map[string]string{"user.a": "b"}}})
	image, err := os.ReadFile(tmpl.Root)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(1024), []byte{1}, uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, at uint32, change []byte, at2 uint32, change2 []byte) {
		b := bytes.Clone(image)
		copy(b[int(at)%len(b):], change)
		copy(b[int(at2)%len(b):], change2)
		top, err := openTreeImage(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = tree.Build(ctx, &collector{Hasher: tree.NewHasher()}, top, tree.BuildOptions{Parallel: 1})
		if ctx.Err() != nil {
			t.Fatal("building the tree does not end")
		}
	})
}
