//go:build linux

package statedir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"turnstone.dev/turnstone"
)

// TestMemory: the folder in memory is private, is the same for all processes of the state directory,
// and is not used if somebody else made it, or if it is a link.
func TestMemory(t *testing.T) {
	h := &Dir{Root: t.TempDir()}
	t.Cleanup(func() {
		if top, err := h.Memory(); err == nil {
			_ = os.RemoveAll(top)
		}
	})
	var wg sync.WaitGroup
	dirs := make([]string, 8)
	for i := range dirs {
		wg.Go(func() { dirs[i], _ = (&Dir{Root: h.Root}).Memory("a", "b") })
	}
	wg.Wait()
	for _, d := range dirs {
		if d == "" || d != dirs[0] {
			t.Fatalf("%q", dirs)
		}
	}
	top := filepath.Dir(filepath.Dir(dirs[0]))
	if fi, err := os.Stat(top); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", fi, err)
	}
	check(t, os.WriteFile(filepath.Join(dirs[0], "f"), nil, 0o600))
	check(t, h.ForgetMemory("a"))
	if _, err := os.Stat(dirs[0]); err == nil {
		t.Error("it is still there")
	}

	other := &Dir{Root: t.TempDir()}
	elsewhere, err := other.Memory()
	check(t, err)
	if elsewhere == top {
		t.Error("two state directories share a folder")
	}
	for what, spoil := range map[string]func() error{
		"open to others": func() error { return os.Chmod(elsewhere, 0o755) },
		"a link": func() error {
			if err := os.Remove(elsewhere); err != nil {
				return err
			}
			return os.Symlink(top, elsewhere)
		},
		"a file": func() error {
			if err := os.Remove(elsewhere); err != nil {
				return err
			}
			return os.WriteFile(elsewhere, nil, 0o600)
		},
	} {
		check(t, os.RemoveAll(elsewhere))
		_, err := other.Memory()
		check(t, err)
		check(t, spoil())
		if _, err := other.Memory("x"); turnstone.KindOf(err) != turnstone.KindUnavailable ||
			turnstone.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t, os.RemoveAll(elsewhere))
}
