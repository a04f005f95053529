package copyout_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/repo/copyout"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestCopyStaysInItsDestination copies a state that a hostile guest has left beside a file of the
// host: neither the file nor what the links name may change.
func TestCopyStaysInItsDestination(t *testing.T) {
	p := repotest.New(t)
	host := t.TempDir()
	secret := filepath.Join(host, "secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Turn(p.Session("s"), "main",
		treetest.File{Path: "/d/absolute", Target: secret},
		treetest.File{Path: "/d/up", Target: "../../secret"},
		treetest.File{Path: "/d/down", Target: "f"},
		treetest.File{Path: "/d/f", Data: "data", Mode: 0o4755},
		treetest.File{Path: "/d/fifo", Type: tree.FIFO})
	dest := filepath.Join(host, "dest") + "/"
	var skipped []string
	err := copyout.Copy(t.Context(), p.Repo, "s", "/d", dest, func(name, why string) {
		skipped = append(skipped, filepath.Base(name)+": "+why)
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(skipped)
	if all := strings.Join(skipped, "\n"); len(skipped) != 4 || !strings.Contains(all, "absolute: ") ||
		!strings.Contains(all, "up: ") || !strings.Contains(all, "f: it is copied without") ||
		!strings.Contains(all, "fifo: it is a fifo") {
		t.Errorf("skipped %q", skipped)
	}
	for path, want := range map[string]string{secret: "the host's", dest + "d/f": "data",
		dest + "d/down": "data"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	for _, name := range []string{"absolute", "up", "fifo"} {
		if _, err := os.Lstat(dest + "d/" + name); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st, err := os.Stat(dest + "d/f"); err != nil || st.Mode()&os.ModeSetuid != 0 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestCopyEnds: an error at either end of the stream ends the copy, and is the one that is returned.
func TestCopyEnds(t *testing.T) {
	p := repotest.New(t)
	p.Turn(p.Session("s"), "main",
		treetest.File{Path: "/d/a", Data: repotest.Random(2<<20, 1)},
		treetest.File{Path: "/d/b", Data: repotest.Random(2<<20, 2)})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, name, dest string
		kind             turnstone.Kind
	}{
		{"a destination below a file", "/d", file + "/x", turnstone.KindInvalid},
		{"a missing path", "/none", t.TempDir(), turnstone.KindNotFound},
	} {
		err := copyout.Copy(t.Context(), p.Repo, "s", c.name, c.dest, nil)
		if turnstone.KindOf(err) != c.kind {
			t.Errorf("%s: %v, kind %s", c.what, err, turnstone.KindOf(err))
		}
	}
}

// TestCopyLeavesRoom checks that the configured free_space stays free at the destination, that the
// error says how much is free, and that a rejected copy creates no folder.
func TestCopyLeavesRoom(t *testing.T) {
	p := repotest.New(t)
	p.Turn(p.Session("s"), "main", treetest.File{Path: "/f", Data: "data"})
	top := t.TempDir()
	dest := filepath.Join(top, "new", "f")
	for _, c := range []struct{ free, want string }{
		{"1000TiB", " are free, and 1000.0 TiB must stay free"}, {"0B", ""},
	} {
		if err := os.WriteFile(p.Repo.Dir.Path(config.File),
			[]byte("[limits]\nfree_space = \""+c.free+"\""), 0o600); err != nil {
			t.Fatal(err)
		}
		err := copyout.Copy(t.Context(), p.Repo, "s", "/f", dest, nil)
		if c.want == "" {
			if b, rerr := os.ReadFile(dest); err != nil || string(b) != "data" {
				t.Errorf("%s: %q, %v, %v", c.free, b, rerr, err)
			}
			continue
		}
		if turnstone.KindOf(err) != turnstone.KindExhausted ||
			!strings.Contains(err.Error(), c.want) ||
			!strings.Contains(turnstone.HintOf(err), "free_space") {
			t.Errorf("%s: %v (%s)", c.free, err, turnstone.HintOf(err))
		}
		if left, err := os.ReadDir(top); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", c.free, left, err)
		}
	}
}
