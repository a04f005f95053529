package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/leaktest"
	"turnstone.dev/turnstone/internal/store/blob"
	"turnstone.dev/turnstone/internal/store/blob/blobtest"
	"turnstone.dev/turnstone/internal/store/blob/local"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(leaktest.Patient(m)) }

func open(t *testing.T, dir string, opts local.Options) *local.Store {
	t.Helper()
	s, err := local.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		return open(t, filepath.Join(t.TempDir(), "new"), local.Options{})
	})
}

// TestFault fails each operation of a put in turn: the result is complete or absent, and the next
// put heals it.
func TestFault(t *testing.T) {
	broken := errors.New("injected")
	for n := 0; ; n++ {
		dir, left := t.TempDir(), n
		var ops []string
		s := open(t, dir, local.Options{Fault: func(op string) error {
			ops = append(ops, op)
			if left == 0 {
				return broken
			}
			left--
			return nil
		}})
		err := s.Put(t.Context(), "a/b", strings.NewReader("text"), 4)
		if err == nil {
			if want := []string{"create", "write", "fsync", "mkdir", "fsync-dir", "rename",
				"fsync-dir"}; !slices.Equal(ops, want) {
				t.Errorf("a put does %q, want %q", ops, want)
			}
			return
		}
		if !errors.Is(err, broken) {
			t.Fatalf("fault %d: %v", n, err)
		}
		whole := open(t, dir, local.Options{})
		for info, err := range whole.List(t.Context(), "") {
			if err != nil || info.Size != 4 {
				t.Errorf("fault %d at %q left %v, %v", n, ops[len(ops)-1], info, err)
			}
		}
		if tmp, _ := filepath.Glob(filepath.Join(dir, ".tmp", "*")); len(tmp) != 0 {
			t.Errorf("fault %d left %q", n, tmp)
		}
		if err := whole.Put(t.Context(), "a/b", strings.NewReader("text"), 4); err != nil {
			t.Errorf("after fault %d: %v", n, err)
		}
	}
}

// TestSync makes removals durable: it syncs the folder, and has nothing to do without one.
func TestSync(t *testing.T) {
	broken := errors.New("injected")
	var ops []string
	fail := false
	s := open(t, t.TempDir(), local.Options{Fault: func(op string) error {
		ops = append(ops, op)
		if fail {
			return broken
		}
		return nil
	}})
	if err := s.Sync(t.Context(), "a/"); err != nil {
		t.Errorf("a folder that does not exist: %v", err)
	}
	if err := s.Put(t.Context(), "a/b", strings.NewReader("text"), 4); err != nil {
		t.Fatal(err)
	}
	ops = nil
	if err := s.Remove(t.Context(), "a/b"); err != nil {
		t.Error(err)
	}
	if err := s.Sync(t.Context(), "a/"); err != nil {
		t.Error(err)
	}
	if want := []string{"remove", "fsync-dir"}; !slices.Equal(ops, want) {
		t.Errorf("a durable removal does %q, want %q", ops, want)
	}
	fail = true
	if err := s.Sync(t.Context(), "a/"); !errors.Is(err, broken) {
		t.Errorf("a failing sync: %v", err)
	}
}

// TestLinks checks that a symbolic link does not lead out of the folder.
func TestLinks(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, local.Options{})
	if _, err := s.Get(t.Context(), "out/secret", 0, -1); err == nil {
		t.Error("it is read through a symbolic link")
	}
	if err := s.Put(t.Context(), "out/new", strings.NewReader("x"), 1); err == nil {
		t.Error("it is written through a symbolic link")
	}
	for info := range s.List(t.Context(), "") {
		t.Errorf("it lists %q", info.Name)
	}
}

// TestOldTmp checks that remains of a killed process are removed, and files of a running process
// stay.
func TestOldTmp(t *testing.T) {
	dir := t.TempDir()
	tmp := filepath.Join(dir, ".tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"old": 48 * time.Hour, "new": time.Hour} {
		p := filepath.Join(tmp, name)
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, time.Now().Add(-age), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir, local.Options{})
	left, _ := filepath.Glob(filepath.Join(tmp, "*"))
	if len(left) != 1 || filepath.Base(left[0]) != "new" {
		t.Errorf("left: %q", left)
	}
}

func TestOpenNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := local.Open(file, local.Options{})
	if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) == "" {
		t.Errorf("a file as the folder: %v", err)
	}
}
