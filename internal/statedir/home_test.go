package statedir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

func TestLocate(t *testing.T) {
	t.Setenv("HOME", "/h")
	t.Setenv("XDG_DATA_HOME", "")
	for _, c := range []struct{ turn, xdg, want string }{
		{"", "", "/h/.local/share/turnstone"},
		{"", "/x", "/x/turnstone"},
		// the XDG specification requires ignoring such a path
		{"", "relative", "/h/.local/share/turnstone"},
		{"/t", "/x", "/t"},
	} {
		t.Setenv("XDG_DATA_HOME", c.xdg)
		if got, err := Locate(c.turn); err != nil || got != c.want {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	h, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 ||
		h.Path("x", "y") != filepath.Join(dir, "x", "y") {
		t.Errorf("%v, %v", st, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file); turnstone.KindOf(err) != turnstone.KindUnavailable ||
		turnstone.HintOf(err) == "" {
		t.Errorf("a file as home: %v", err)
	}
}

// TestReleaseDuringFork checks that a released lock is free while a child process, which is between
// fork and exec, still has its descriptor.
func TestReleaseDuringFork(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	l, err := TryAcquire(path)
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	child, err := syscall.Dup(int(l.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(child) }()
	l.Release()
	again, err := TryAcquire(path)
	if err != nil || again == nil {
		t.Errorf("a released lock is not free: %v", err)
	}
	again.Release()
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := TryAcquire(path)
	if err != nil || first == nil {
		t.Fatal(first, err)
	}
	if second, err := TryAcquire(path); second != nil || err != nil {
		t.Errorf("two hold it: %v, %v", second, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) //wait: it is meant to expire
	defer cancel()
	told := 0
	if l, err := Acquire(ctx, path, func() { told++ }); l != nil ||
		turnstone.KindOf(err) != turnstone.KindCanceled ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a held lock: %v, %v", l, err)
	}
	if told != 1 {
		t.Errorf("told %d times to wait", told)
	}
	time.AfterFunc(20*time.Millisecond, first.Release) //wait: any moment is right
	third, err := Acquire(t.Context(), path, nil)
	if err != nil || third == nil {
		t.Fatalf("a released lock: %v", err)
	}
	// A process that opens the removed file's name creates a new file. Both locks are then valid
	// for their files; no other process sees the old lock.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	fourth, err := TryAcquire(path)
	if err != nil || fourth == nil {
		t.Errorf("a new file under the name: %v, %v", fourth, err)
	}
	third.Release()
	fourth.Release()
	(*Lock)(nil).Release()
	if _, err := TryAcquire(filepath.Join(path, "none", "lock")); err == nil {
		t.Error("a lock in a folder that is not there")
	}
}
