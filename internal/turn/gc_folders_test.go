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

// TestGCSweepsRemovedSessions: what a session wrote that was removed stays as long as it is
// told, and no longer; what runs stays.
func TestGCSweepsRemovedSessions(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	folder := func(id turnstone.TurnID) string {
		dir := ok[string](t)(p.x.home.MkdirAll("turns", string(id)))
		if err := os.WriteFile(filepath.Join(dir, "step-1.stdout"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	gone, kept := folder(p.Turn(p.Session("o"), "main", texts(map[string]string{"/a": "x"})...).ID), folder(p.Turn(p.Session("other"), "main", texts(map[string]string{"/a": "x"})...).ID)
	runs := folder(turnstone.NewTurnID())
	lock := ok[*os.File](t)(repo.LockFolder(runs, syscall.LOCK_EX))
	defer func() { _ = lock.Close() }()
	ok[turnstone.Session](t)(p.x.RemoveSession(ctx, "o"))
	for _, tc := range []struct {
		keep    time.Duration
		folders int
	}{{time.Hour, 0}, {0, 1}} {
		if rep := ok[*repo.GCReport](t)(p.x.GC(ctx, repo.GCRequest{KeepAnonymous: tc.keep, KeepUnreachable: tc.keep})); rep.Folders != tc.folders {
			t.Errorf("keep %s: %+v", tc.keep, rep)
		}
	}
	for dir, there := range map[string]bool{gone: false, kept: true, runs: true} {
		if _, err := os.Stat(dir); (err == nil) != there {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

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
