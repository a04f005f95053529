package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/statedir"
)

var kind = Kind{Manifest: "m.json", Keys: "k-", New: ".taking-", End: "."}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A store has one snapshot, whose manifest is a word: "whole" if it fits.
type store struct {
	dir   string
	mu    sync.Mutex
	told  []string
	taken atomic.Int32
	fails error
	ended int
}

func newStore(t *testing.T) *store {
	return &store{dir: filepath.Join(t.TempDir(), "snapshots", "k-1")}
}

func (s *store) ensure(ctx context.Context) (string, error) {
	return Ensure(ctx, kind, Want[string]{
		Home: &statedir.Dir{Root: filepath.Dir(filepath.Dir(s.dir))}, Key: filepath.Base(s.dir),
		How: "a way",
		Open: func(dir string) (string, error) {
			b, err := os.ReadFile(filepath.Join(dir, kind.Manifest))
			if err == nil && string(b) != `"whole"` {
				err = errors.New("it is damaged")
			}
			return string(b), err
		},
		Fill: func(tmp string) error {
			s.taken.Add(1)
			time.Sleep(20 * time.Millisecond) //wait: it makes a race likelier, and no test needs it
			return errors.Join(os.WriteFile(filepath.Join(tmp, kind.Manifest),
				[]byte(`"whole"`), 0o600), s.fails)
		},
		Taken: func(string) { s.ended++ },
		Progress: func(text string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.told = append(s.told, text)
		},
	})
}

// names returns the names in the folder of the snapshots.
func (s *store) names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(s.dir))
	check(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestEnsure checks that a snapshot is taken once, and again if it is damaged.
func TestEnsure(t *testing.T) {
	s := newStore(t)
	for range 2 {
		if got, err := s.ensure(t.Context()); err != nil || got != `"whole"` {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n := s.taken.Load(); n != 1 || s.ended != 1 {
		t.Errorf("taken %d times, and told so %d times", n, s.ended)
	}
	path := filepath.Join(s.dir, kind.Manifest)
	check(t, os.WriteFile(path, []byte("other"), 0o600))
	left := filepath.Join(s.dir, "left")
	check(t, os.WriteFile(left, nil, 0o600))
	if got, err := s.ensure(t.Context()); err != nil || got != `"whole"` {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something of the damaged one is left: %v", err)
	}
	want := []string{"taking the snapshot (a way)",
		"rebuilding a snapshot that cannot be used (it is damaged)", "taking the snapshot (a way)"}
	if !slices.Equal(s.told, want) {
		t.Errorf("told %q", s.told)
	}
	past := time.Now().Add(-time.Hour)
	check(t, os.Chtimes(path, past, past))
	_, err := s.ensure(t.Context())
	check(t, err)
	if st, err := os.Stat(path); err != nil || time.Since(st.ModTime()) > time.Minute {
		t.Errorf("its use is not noted: %v, %v", st.ModTime(), err)
	}
}

// TestEnsureRace checks that a snapshot is taken once for many concurrent callers.
func TestEnsureRace(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := s.ensure(t.Context()); err != nil || got != `"whole"` {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := s.taken.Load(); n != 1 {
		t.Errorf("taken %d times", n)
	}
}

// TestEnsureFails checks that a failed snapshot leaves nothing.
func TestEnsureFails(t *testing.T) {
	s := newStore(t)
	s.fails = errors.New("no room")
	_, err := s.ensure(t.Context())
	if !errors.Is(err, s.fails) || !strings.HasPrefix(err.Error(), "taking the snapshot: ") {
		t.Errorf("%v", err)
	}
	if names := s.names(t); !slices.Equal(names, []string{"k-1.lock"}) || s.ended != 0 {
		t.Errorf("there is %q, told %d times", names, s.ended)
	}
}

// TestEnsureCanceled checks that a canceled check does not cause a new snapshot.
func TestEnsureCanceled(t *testing.T) {
	home := &statedir.Dir{Root: t.TempDir()}
	dir, err := home.MkdirAll("snapshots", "k-1")
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	opened := 0
	_, err = Ensure(ctx, kind, Want[int]{
		Home: home, Key: "k-1", Progress: func(text string) { t.Errorf("told %q", text) },
		Open: func(string) (int, error) {
			if opened++; opened == 2 { // the lock is held by then
				cancel()
				return 0, fmt.Errorf("memory: %w", ctx.Err())
			}
			return 0, errors.New("it was touched")
		},
		Fill:  func(string) error { t.Error("it is taken"); return nil },
		Taken: func(string) {},
	})
	if !errors.Is(err, context.Canceled) || opened != 2 {
		t.Errorf("%v, opened %d times", err, opened)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the snapshot is gone: %v", err)
	}
}

// TestSweep checks that leftovers of dead processes are removed, and that snapshots in progress,
// and those of other substrates, stay.
func TestSweep(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{".taking-k-dead.1", ".taking-k-busy.1", ".taking-other.1",
		".new-k-dead.1", "k-dead"} {
		check(t, os.Mkdir(filepath.Join(base, name), 0o700))
	}
	lock, err := statedir.TryAcquire(filepath.Join(base, "k-busy.lock"))
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	defer lock.Release()
	kind.Sweep(base)
	for name, stays := range map[string]bool{".taking-k-dead.1": false, ".taking-k-busy.1": true,
		".taking-other.1": true, ".new-k-dead.1": true, "k-dead": true} {
		if _, err := os.Stat(filepath.Join(base, name)); (err == nil) != stays {
			t.Errorf("%s: %v, and should stay: %t", name, err, stays)
		}
	}
}

func TestRemoveSuperseded(t *testing.T) {
	base := t.TempDir()
	past := time.Now().Add(-2 * Unused)
	place := func(name, manifest string, old bool) {
		t.Helper()
		path := filepath.Join(base, name, kind.Manifest)
		check(t, errors.Join(os.Mkdir(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(manifest), 0o600)))
		if old {
			check(t, os.Chtimes(path, past, past))
		}
	}
	place("k-kept", `"kept"`, true)
	place("k-young", `"ages"`, false)
	place("k-old", `"ages"`, true)
	place("k-replaced", `"replaced"`, false)
	place("k-used", `"replaced"`, false)
	place("k-huge", `"replaced`+strings.Repeat(" ", MaxManifest)+`"`, false)
	place("k-broken", `{`, true)
	place("other", `"replaced"`, true)
	lock, err := statedir.TryAcquire(filepath.Join(base, "k-used.lock"))
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	defer lock.Release()
	RemoveSuperseded(kind, base, func(manifest string) Verdict {
		return map[string]Verdict{"kept": Keep, "ages": MayAge, "replaced": Replaced}[manifest]
	})
	for name, stays := range map[string]bool{
		"k-kept": true, "k-young": true, "k-old": false, "k-replaced": false,
		"k-replaced.lock": false,
		"k-used":          true, "k-huge": true, "k-broken": true, "other": true,
	} {
		if _, err := os.Stat(filepath.Join(base, name)); (err == nil) != stays {
			t.Errorf("%s: %v, and should stay: %t", name, err, stays)
		}
	}
}
