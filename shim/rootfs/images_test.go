package rootfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/erofs/go-erofs"
)

// maker returns images in a new folder whose content is that of the first layer, and counts those that are made.
func maker(t *testing.T, made *atomic.Int32) *Images {
	return &Images{Dir: t.TempDir(), Make: func(ctx context.Context, o Order) error {
		return Make(ctx, o, func(layers []string, f func(string) error) error {
			made.Add(1)
			return f(layers[0])
		})
	}}
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range all {
		names = append(names, filepath.Ext(e.Name()))
	}
	slices.Sort(names)
	return names
}

// TestImages: the image of a stack of layers is made once, also for many at once and after a maker was killed, and goes
// with its layers.
func TestImages(t *testing.T) {
	var read atomic.Int32
	x := maker(t, &read)
	top, below := t.TempDir(), t.TempDir()
	check(t, os.WriteFile(filepath.Join(top, "a"), []byte("text"), 0o640))
	check(t, os.Link(filepath.Join(top, "a"), filepath.Join(top, "b")))
	root := []string{top, below}
	paths := make([]string, 8)
	var all sync.WaitGroup
	for i := range paths {
		all.Go(func() { paths[i], _ = x.Of(t.Context(), root) })
	}
	all.Wait()
	if paths[0] == "" || len(slices.Compact(slices.Clone(paths))) != 1 || read.Load() != 1 {
		t.Fatalf("%q, of %d reads", paths, read.Load())
	}
	f, err := os.Open(paths[0])
	check(t, err)
	defer f.Close()
	img, err := erofs.Open(f)
	check(t, err)
	text, err := fs.ReadFile(img, "b")
	check(t, err)
	if string(text) != "text" {
		t.Errorf("%q", text)
	}

	other, err := x.Of(t.Context(), []string{below, top})
	check(t, err)
	if other == paths[0] {
		t.Error("layers in another order have the same image")
	}
	// another folder has the place of a layer, and a maker was killed
	check(t, os.Rename(below, below+".old"))
	check(t, os.Mkdir(below, 0o755))
	check(t, os.WriteFile(filepath.Join(x.Dir, "killed"+layersEnd), nil, 0o600))
	check(t, os.WriteFile(filepath.Join(x.Dir, "killed"+newEnd), []byte("half"), 0o600))
	next, err := x.Of(t.Context(), root)
	check(t, err)
	if names := entries(t, x.Dir); next == paths[0] || !slices.Equal(names, []string{imageEnd, layersEnd}) {
		t.Errorf("%s after %s, and there are %q", next, paths[0], names)
	}
	check(t, os.Remove(below))
	if x.Sweep(); len(entries(t, x.Dir)) != 0 {
		t.Errorf("without its layer: %q", entries(t, x.Dir))
	}
}

// TestNoImage: an image that cannot be made leaves nothing.
func TestNoImage(t *testing.T) {
	failure := errors.New("no mount")
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o640))
	for _, c := range []struct {
		what string
		with func(layers []string, f func(string) error) error
		want error
	}{
		{"no mount", func([]string, func(string) error) error { return failure }, failure},
		{"a mount that fails in the end", func(_ []string, f func(string) error) error { return errors.Join(f(t.TempDir()), failure) }, failure},
	} {
		x := &Images{Dir: t.TempDir(), Make: func(ctx context.Context, o Order) error { return Make(ctx, o, c.with) }}
		path, err := x.Of(t.Context(), []string{dir})
		if !errors.Is(err, c.want) || path != "" || len(entries(t, x.Dir)) > 0 {
			t.Errorf("%s: %q, %v; left: %q", c.what, path, err, entries(t, x.Dir))
		}
	}
	var made atomic.Int32
	if _, err := maker(t, &made).Of(t.Context(), []string{dir + "/none"}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
