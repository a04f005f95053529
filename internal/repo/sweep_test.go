package repo_test

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/repo"
	"turnstone.dev/turnstone/internal/repo/repotest"
	"turnstone.dev/turnstone/internal/store/session"
	"turnstone.dev/turnstone/internal/store/tree/treetest"
)

// TestGCSweepsRemovedSessions checks that the folder of a removed session stays for the given time,
// and that folders of running turns stay.
func TestGCSweepsRemovedSessions(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	folder := func(id turnstone.TurnID) string {
		dir := ok[string](t)(p.Repo.Dir.MkdirAll("turns", string(id)))
		if err := os.WriteFile(filepath.Join(dir, "step-1.stdout"), []byte("x"),
			0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	gone, kept := folder(p.Turn(p.Session("o"), "main",
		treetest.Texts(map[string]string{"/a": "x"})...).ID),
		folder(p.Turn(p.Session("other"), "main",
			treetest.Texts(map[string]string{"/a": "x"})...).ID)
	runs := folder(turnstone.NewTurnID())
	lock := ok[*os.File](t)(repo.LockFolder(runs, syscall.LOCK_EX))
	defer func() { _ = lock.Close() }()
	ok[turnstone.Session](t)(p.Repo.RemoveSession(ctx, "o"))
	for _, tc := range []struct {
		keep    time.Duration
		folders int
	}{{time.Hour, 0}, {0, 1}} {
		if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx,
			turnstone.GCRequest{KeepAnonymous: tc.keep,
				KeepUnreachable: tc.keep})); rep.Folders != tc.folders {
			t.Errorf("keep %s: %+v", tc.keep, rep)
		}
	}
	for dir, there := range map[string]bool{gone: false, kept: true, runs: true} {
		if _, err := os.Stat(dir); (err == nil) != there {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestGCSweepsCaptures checks that the outputs of a killed turn are deleted, except those that its
// receipt names, and that a running turn loses nothing.
func TestGCSweepsCaptures(t *testing.T) {
	p := repotest.New(t)
	ctx := t.Context()
	s := p.Session("s")
	done := p.Turn(s, "main", treetest.Texts(map[string]string{"/a": "one"})...)
	folder := func(id turnstone.TurnID) string {
		dir := ok[string](t)(p.Repo.Dir.MkdirAll("turns", string(id)))
		for name, text := range map[string]string{
			"receipt.md":     "the whole is in $TURN_HOME/turns/" + string(id) + "/step-1.stdout",
			"receipt.md.new": "x", ".receipt.md.123": "x",
			"step-1.stdout": "named", "step-2.stdout": "cut off", "step-2.stderr": "cut off",
			"other": "x"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	names := func(dir string) (all []string) {
		for _, e := range ok[[]os.DirEntry](t)(os.ReadDir(dir)) {
			all = append(all, e.Name())
		}
		return all
	}
	// One turn is killed: another handle of the database is closed before the turn's end.
	db := ok[*session.DB](t)(session.Open(ctx, p.Repo.Dir.Path("context.db")))
	killed := ok[turnstone.Turn](t)(db.Start(ctx,
		session.StartTurn{Session: s.ID, Kind: turnstone.TurnKindRun}))
	runs := ok[turnstone.Turn](t)(p.CS.DB.Start(ctx,
		session.StartTurn{Session: s.ID, Kind: turnstone.TurnKindRun}))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	of := map[string]string{"done": folder(done.ID), "killed": folder(killed.ID),
		"runs": folder(runs.ID), "replay": folder(turnstone.NewTurnID()),
		"replay that runs": folder(turnstone.NewTurnID())}
	lock := ok[*os.File](t)(repo.LockFolder(of["replay that runs"], syscall.LOCK_EX))
	defer func() { _ = lock.Close() }()
	all := []string{".receipt.md.123", "other", "receipt.md", "receipt.md.new", "step-1.stdout",
		"step-2.stderr", "step-2.stdout"}
	some := []string{"other", "receipt.md", "step-1.stdout"}
	for _, dry := range []bool{true, false} {
		if rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx,
			turnstone.GCRequest{KeepAnonymous: time.Hour, KeepUnreachable: time.Hour,
				DryRun: dry})); rep.Captures != 8 || rep.Folders != 0 {
			t.Errorf("dry run %v: %+v", dry, rep)
		}
		for what, dir := range of {
			want := all
			if !dry && (what == "killed" || what == "replay") {
				want = some
			}
			if got := names(dir); !slices.Equal(got, want) {
				t.Errorf("dry run %v, %s: %q", dry, what, got)
			}
		}
	}
	// The folder of a running turn stays, even with an old timestamp.
	rep := ok[*turnstone.GCReport](t)(p.Repo.GC(ctx,
		turnstone.GCRequest{Now: time.Now().Add(10 * time.Hour),
			KeepUnreachable: time.Hour * 1000}))
	if _, err := os.Stat(of["replay that runs"]); err != nil || rep.Folders != 1 {
		t.Errorf("%v, %+v", err, rep)
	}
}
