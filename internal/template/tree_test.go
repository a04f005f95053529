package template

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs/erofstest"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
	"turnstone.dev/turnstone/internal/template/treeindex"
)

// treeFiles are the files in the images of these tests.
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

// makeTemplate writes files into an image, like a built template.
func makeTemplate(t testing.TB, files []treetest.File) (*Store, *turnstone.Template) {
	t.Helper()
	s := NewStore(t.TempDir())
	dir := filepath.Join(s.dir, "image")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root.erofs")
	erofstest.Write(t, root, files)
	st, err := filestamp.Of(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	return s, &turnstone.Template{Name: "test", Root: root, RootDigest: st.Digest, Size: st.Size}
}

// both is a store that finds contents in a template.
type both struct {
	*treetest.Store
	content *treeindex.Content
}

func (b both) OpenContent(ctx context.Context, c turnstone.Content) (io.ReadCloser, error) {
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
	content := ContentOf(tmpl)
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
	// Every byte is at the index's position.
	for _, f := range treeFiles() {
		c := turnstone.Content{Digest: turnstone.DigestBytes([]byte(f.Data)),
			Size: int64(len(f.Data))}
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
	if _, err := content.OpenContent(ctx,
		turnstone.Content{Digest: turnstone.DigestBytes([]byte("other")),
			Size: 5}); turnstone.KindOf(err) != turnstone.KindNotFound {
		t.Errorf("%v", err)
	}
	if _, err := content.OpenContent(ctx,
		turnstone.Content{Digest: turnstone.DigestBytes([]byte("#!")),
			Size: 5}); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("%v", err)
	}
}

func TestTreeIsReadOnce(t *testing.T) {
	ctx := context.Background()
	s, tmpl := makeTemplate(t, treeFiles())
	if ContentOf(tmpl).HasContent(turnstone.DigestBytes([]byte("#!"))) {
		t.Error("found before Tree")
	}
	var first sync.WaitGroup
	refs := make([]turnstone.TreeRef, 4)
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
	before, err := os.Stat(filepath.Join(filepath.Dir(tmpl.Root), "root.tree"))
	if err != nil {
		t.Fatal(err)
	}
	// Without the image's bytes the tree is still known.
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
	if after, err := os.Stat(filepath.Join(filepath.Dir(tmpl.Root), "root.tree")); err != nil ||
		!os.SameFile(before, after) {
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
	good, err := os.ReadFile(filepath.Join(filepath.Dir(tmpl.Root), "root.tree"))
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
		"length": func(b []byte) []byte {
			copy(b[bytes.LastIndex(b, []byte("r\x01"))-8:],
				"\xff\xff\xff\xff")
			return b
		},
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(tmpl.Root), "root.tree"),
			damage(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		ref, err := s.Tree(ctx, tmpl, treetest.NewStore())
		if err != nil || ref != want {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
	}
	other := *tmpl
	other.RootDigest = turnstone.DigestBytes([]byte("another image"))
	if ContentOf(&other).HasContent(turnstone.DigestBytes([]byte("#!"))) {
		t.Error("the index of another image was taken")
	}
}

func TestTreeOfADamagedImage(t *testing.T) {
	s, tmpl := makeTemplate(t, treeFiles())
	if err := os.WriteFile(tmpl.Root, bytes.Repeat([]byte("no"), 10000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Tree(context.Background(), tmpl,
		treetest.NewStore()); turnstone.KindOf(err) != turnstone.KindIntegrity {
		t.Errorf("%v", err)
	}
}

func TestContentAfterClose(t *testing.T) {
	ctx := context.Background()
	s, tmpl := makeTemplate(t, treeFiles())
	if _, err := s.Tree(ctx, tmpl, treetest.NewStore()); err != nil {
		t.Fatal(err)
	}
	c := ContentOf(tmpl)
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
	if _, err := c.OpenContent(ctx, turnstone.Content{Digest: d, Size: 2}); !errors.Is(err,
		os.ErrClosed) {
		t.Errorf("%v", err)
	}
}
