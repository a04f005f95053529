package session

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"turnstone.dev/turnstone"
)

// TestLocked: while a backup has the database locked for longer than a write waits, a turn does not
// begin, with an error that says so, and a turn that ends waits for the end of the backup.
func TestLocked(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "context.db")
	db, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	running, err := db.Start(ctx, StartTurn{Kind: turnstone.TurnKindRun})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.sql.ExecContext(ctx, "PRAGMA busy_timeout = 20"); err != nil {
		t.Fatal(err)
	}
	backup, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = backup.Close() }()
	lock, err := backup.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	_, err = db.Start(ctx, StartTurn{Session: running.Session, Kind: turnstone.TurnKindRun})
	if turnstone.KindOf(err) != turnstone.KindUnavailable || turnstone.HintOf(err) !=
		"another process holds the database for long; try again" {
		t.Errorf("%v (%s)", err, turnstone.HintOf(err))
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := db.Finish(ctx, Finish{Turn: running.ID, Result: turnstone.ResultPassed})
		ended <- err
	}()
	for db.waited.Load() < 2 {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := lock.ExecContext(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	all, err := db.Turns(ctx, running.Session)
	if err != nil || len(all) != 1 || all[0].Result != turnstone.ResultPassed {
		t.Errorf("%+v %v", all, err)
	}
}
