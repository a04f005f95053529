package turn

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/statedir"
)

// TestFolderBesideGC: a turn has its folder, locked, also when a gc removes the folder, which
// no session knows yet, between the turn's opening it and its locking it.
func TestFolderBesideGC(t *testing.T) {
	x := New(&statedir.Dir{Root: t.TempDir()})
	t.Cleanup(func() { _ = x.Close() })
	told := &tellings{}
	r := &run{x: x, plan: &plan.Plan{}, obs: told, info: document.TurnInfo{ID: turnstone.NewTurnID()}}
	dir := ok[string](t)(x.home.MkdirAll("turns", string(r.info.ID)))
	gc := ok[*os.File](t)(repo.LockFolder(dir, syscall.LOCK_EX))
	opened := make(chan struct{})
	go func() {
		r.openFolder()
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
	if r.dir == "" || !isAt(r.folder.lock, r.dir) {
		t.Errorf("the turn has no folder: %q", told.said)
	}
	r.closeFolder()
}

// descriptorsOf counts this process's descriptors of a folder.
func descriptorsOf(t *testing.T, dir string) (n int) {
	t.Helper()
	all := ok[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))
	for _, e := range all {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && to == dir {
			n++
		}
	}
	return n
}

// TestTurnKeepsKind: a turn that was cut off says what kind of error did it.
func TestTurnKeepsKind(t *testing.T) {
	for _, kind := range []turnstone.Kind{turnstone.KindNotFound, turnstone.KindUnavailable, turnstone.KindCanceled, turnstone.KindDead} {
		r := &run{plan: &plan.Plan{}, doc: parse(t, "# A turn\n\ntext\n"), obs: &observer{}, clock: newStopwatch()}
		r.openSteps()
		r.fail(turnstone.NewError("executor.get", kind, "/nofile", nil))
		if turn := r.turn(); turn.Kind != kind || turn.Result != turnstone.ResultError {
			t.Errorf("%s: %+v", kind, turn)
		}
	}
}
