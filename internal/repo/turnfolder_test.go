package repo_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestFolderBesideGC checks that a turn gets its folder, locked, even if a gc removes the folder
// between the turn's open and lock, because no session has the turn yet.
func TestFolderBesideGC(t *testing.T) {
	x := repo.New(&statedir.Dir{Root: t.TempDir()}, "", nil)
	id := turnstone.NewTurnID()
	dir := repotest.OK[string](t)(x.Dir.MkdirAll("turns", string(id)))
	gc := repotest.OK[*os.File](t)(repo.LockFolder(dir, syscall.LOCK_EX))
	var folder *repo.TurnFolder
	var err error
	opened := make(chan struct{})
	go func() {
		folder, err = x.OpenTurnFolder(id)
		close(opened)
	}()
	for descriptorsOf(t, dir) < 2 {
		time.Sleep(time.Millisecond)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_ = gc.Close()
	<-opened
	if err != nil || folder.Dir != dir {
		t.Fatalf("the turn has no folder: %v", err)
	}
	if _, err := repo.LockFolder(dir, syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err,
		syscall.EWOULDBLOCK) {
		t.Errorf("the folder is not locked: %v", err)
	}
	folder.Close()
}

// descriptorsOf counts this process's descriptors of a folder.
func descriptorsOf(t *testing.T, dir string) (n int) {
	t.Helper()
	all := repotest.OK[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))
	for _, e := range all {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil &&
			to == dir {
			n++
		}
	}
	return n
}
