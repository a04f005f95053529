package template

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/hostdir"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestTreeOfTheRealImage compares the tree of a built image with the kernel's view of it.
func TestTreeOfTheRealImage(t *testing.T) {
	ctx := context.Background()
	tmpl, _ := realTemplate(t, "python")
	if os.Geteuid() != 0 {
		t.Skip("mounting takes root")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "loop,ro", tmpl.Root,
		dir).CombinedOutput(); err != nil {
		t.Skipf("no image can be mounted here: %v %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, out)
		}
	})
	s := NewStore(t.TempDir())
	own := *tmpl // with its own index, beside a link to the image
	own.Root = t.TempDir() + "/root.erofs"
	if err := os.Symlink(tmpl.Root, own.Root); err != nil {
		t.Fatal(err)
	}
	store := treetest.NewStore()
	start := time.Now()
	ref, err := s.Tree(ctx, &own, store)
	if err != nil {
		t.Fatal(err)
	}
	first := time.Since(start)
	start = time.Now()
	if again, err := s.Tree(ctx, &own, store); err != nil || again != ref {
		t.Fatalf("%v, %v", again, err)
	}
	second := time.Since(start)
	top, err := hostdir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	mounted := treetest.NewStore()
	var counts tree.Counts
	want, err := tree.Build(ctx, mounted, top, tree.BuildOptions{Counts: &counts})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v; read in %s, then known in %s; %d objects", counts, first, second,
		len(store.Objects()))
	if ref.Hash != want.Hash {
		t.Errorf("FS hash %s, of the mounted image %s", ref.Hash, want.Hash)
	}
	// treetest's store names the mounted image's contents with chunks, so the roots differ.
	n := 0
	if err := diffIgnoringChunks(ctx, store, ref, mounted, want, func(path string) {
		if n++; n < 10 {
			t.Errorf("differs: %s", path)
		}
	}); err != nil {
		t.Fatal(err)
	}
	checkContents(t, &own, mounted, want)
}

// diffIgnoringChunks calls fn for the paths at which two trees in two stores differ.
func diffIgnoringChunks(ctx context.Context, s1 *treetest.Store, a turnstone.TreeRef,
	s2 *treetest.Store, b turnstone.TreeRef, fn func(string)) error {
	both := func(ctx context.Context, d turnstone.Digest) ([]byte, error) {
		if o, err := s1.Get(ctx, d); err == nil {
			return o, nil
		}
		return s2.Get(ctx, d)
	}
	for c, err := range tree.Diff(ctx, getterFunc(both), a, b) {
		if err != nil {
			return err
		}
		fn(fmt.Sprintf("%s: %+v, %+v", c.Path, c.Old, c.New))
	}
	return nil
}

type getterFunc func(context.Context, turnstone.Digest) ([]byte, error)

func (f getterFunc) Get(ctx context.Context,
	d turnstone.Digest) ([]byte, error) {
	return f(ctx, d)
}

// checkContents reads some of the contents out of the image.
func checkContents(t *testing.T, tmpl *turnstone.Template, store *treetest.Store,
	ref turnstone.TreeRef) {
	ctx := context.Background()
	c := ContentOf(tmpl)
	defer c.Close()
	start := time.Now()
	if !c.HasContent(turnstone.DigestBytes([]byte("turn\n"))) { // /etc/hostname
		t.Error("not in the image")
	}
	t.Logf("opened and looked up in %s", time.Since(start))
	n := 0
	if err := tree.Walk(ctx, store, ref, "/", func(p string, e *tree.Entry) error {
		if n++; e.Type != tree.File || n%17 != 0 {
			return nil
		}
		r, err := c.OpenContent(ctx, e.Content)
		if err != nil {
			return err
		}
		defer r.Close()
		d, err := turnstone.DigestReader(r)
		if err != nil || d != e.Content.Digest {
			t.Errorf("%s: %s, %v", p, d, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
