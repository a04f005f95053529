package statedir

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// deep creates nested folders below dir, deeper than descriptors and paths allow, with a file in
// the last folder, and mode for each.
func deep(t *testing.T, dir string, levels int, mode uint32) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	for range levels {
		check(t, unix.Mkdirat(at, "d", 0o700))
		next, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
		check(t, unix.Fchmod(at, mode))
		_ = unix.Close(at)
		at = next
	}
	fd, err := unix.Openat(at, "f", unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	check(t, err)
	_, _ = unix.Close(fd), unix.Close(at)
}

// hostile fills a folder like a program that resists the removal, and returns the files outside.
func hostile(t *testing.T, dir string, levels int) (outside string) {
	t.Helper()
	outside = filepath.Join(t.TempDir(), "outside")
	check(t, os.WriteFile(outside, nil, 0o640))
	for _, name := range []string{"deep", "closed", "empty"} {
		check(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	deep(t, filepath.Join(dir, "deep"), levels, 0o500)
	deep(t, filepath.Join(dir, "closed"), 3, 0)
	check(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "link")))
	check(t, os.Chmod(filepath.Join(dir, "empty"), 0))
	check(t, os.Chmod(dir, 0))
	return outside
}

// TestDiscard: folders without permissions, and deeper than a process's limit of open files, are
// removed, and nothing outside changes.
func TestDiscard(t *testing.T) {
	h := &Dir{Root: t.TempDir()}
	dir := h.Path("cell")
	check(t, os.Mkdir(dir, 0o700))
	outside := hostile(t, dir, 1000)
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 100, Max: limit.Max}))
	defer func() { check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	budget := 100_000
	h.Discard(dir, &budget)
	if left, _ := os.ReadDir(h.Root); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if st, err := os.Stat(outside); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v %v", st, err)
	}
}

// TestTrash: a removal that takes too long moves the rest to the trash, which only EmptyTrash
// removes.
func TestTrash(t *testing.T) {
	h := &Dir{Root: t.TempDir()}
	dir := h.Path("cell")
	check(t, os.Mkdir(dir, 0o700))
	outside := hostile(t, dir, 300)
	budget := 100
	h.Discard(dir, &budget)
	if _, err := os.Lstat(dir); err == nil || budget != 0 {
		t.Errorf("it is still there: %v, budget %d", err, budget)
	}
	if left, _ := os.ReadDir(h.Path(trashDir)); len(left) != 1 {
		t.Errorf("the trash has %v", left)
	}
	if stuck := h.EmptyTrash(t.Context()); len(stuck) > 0 {
		t.Error(stuck)
	}
	if left, _ := os.ReadDir(h.Path(trashDir)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error(err)
	}
}
