package session

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
)

// TestFiles: the database's files are private.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	must[turnstone.Session](t)(open(t, dir).Create(t.Context(), "research"))
	for _, f := range []string{"context.db", "context.db-wal", "context.db-shm"} {
		if st, err := os.Stat(filepath.Join(dir, f)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, st, err)
		}
	}
}

func leasesDir(db *DB) string { return db.leases.(lease.Files).Dir }

// TestForsake: the lease that a killed process left is removed, and that of a turn that runs is not.
func TestForsake(t *testing.T) {
	db := open(t, t.TempDir())
	running, err := db.Start(t.Context(), StartTurn{Kind: turnstone.TurnKindRun})
	if err != nil {
		t.Fatal(err)
	}
	left := turnstone.NewTurnID() // as after a kill between the lease and the turn's row
	if err := os.WriteFile(filepath.Join(leasesDir(db), string(left)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []turnstone.TurnID{running.ID, left, left, turnstone.NewTurnID(), "../context.db"} {
		if err := db.Forsake(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	entries, err := os.ReadDir(leasesDir(db))
	if err != nil || len(entries) != 1 || entries[0].Name() != string(running.ID) {
		t.Errorf("leases: %v, %v", entries, err)
	}
}

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
		case <-time.After(time.Millisecond): //wait: the loop polls
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

// TestMigrations: a database of any version is migrated to the newest, and keeps its content.
func TestMigrations(t *testing.T) {
	for version := 1; version <= schemaVersion; version++ {
		dir := t.TempDir()
		path := filepath.Join(dir, "context.db")
		old, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		for v := 1; v <= version; v++ {
			text, err := sqliteMigrations.ReadFile(fmt.Sprintf("sqlite/%04d.sql", v))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := old.Exec(string(text) +
				fmt.Sprintf(";PRAGMA user_version = %d", v)); err != nil {
				t.Fatal(err)
			}
		}
		// In the format of version 1.
		for _, stmt := range []string{
			"INSERT INTO sessions (id, name, created, next) VALUES ('s_000000000000000000', " +
				"'old', 1, 2)",
			"INSERT INTO turns (id, session, number, branch, kind, title, status, result, record, " +
				"state, started, ended) VALUES ('t_000000000000000000', 's_000000000000000000', 1, " +
				"'main', 'run', 'title', 'done', 'passed', 'sha256:x', '', 1, 2)",
			"INSERT INTO branches VALUES ('s_000000000000000000', 'main', " +
				"'t_000000000000000000', 1)",
		} {
			if _, err := old.Exec(stmt); err != nil {
				t.Fatal(err)
			}
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		db := open(t, dir)
		if x := must[turnstone.Turn](t)(db.Resolve(t.Context(), "old")); x.Number != 1 ||
			x.Title != "title" {
			t.Errorf("from version %d: %+v", version, x)
		}
		if v := must[int](t)(sqliteVersion(t.Context(), db)); v != schemaVersion {
			t.Errorf("version %d", v)
		}
		s := must[turnstone.Session](t)(db.Find(t.Context(), "old"))
		if x := grow(t, db, s, Main); x.Number != 2 {
			t.Errorf("%+v", x)
		}
		wellKept(t, db)
	}
	entries, err := sqliteMigrations.ReadDir("sqlite")
	if err != nil || len(entries) != schemaVersion {
		t.Errorf("%d files for %d versions, %v", len(entries), schemaVersion, err)
	}
}

func TestRefusedDatabases(t *testing.T) {
	newer := t.TempDir()
	db := open(t, newer)
	if _, err := db.sql.Exec(fmt.Sprintf("PRAGMA user_version = %d", schemaVersion+1)); err != nil {
		t.Fatal(err)
	}
	_ = db.Close()
	_, err := Open(t.Context(), filepath.Join(newer, "context.db"))
	if wantKind(t, "a newer version", err,
		turnstone.KindUnavailable); !strings.Contains(turnstone.HintOf(err), "newer") {
		t.Errorf("hint: %s", turnstone.HintOf(err))
	}
	damaged := filepath.Join(t.TempDir(), "context.db")
	if err := os.WriteFile(damaged, []byte(strings.Repeat("this is no database ", 400)),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), damaged)
	wantKind(t, "a damaged file", err, turnstone.KindIntegrity)
	_, err = Open(t.Context(), filepath.Join(t.TempDir(), "none", "context.db"))
	wantKind(t, "no folder", err, turnstone.KindUnavailable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Open(ctx, filepath.Join(t.TempDir(), "context.db"))
	wantKind(t, "given up", err, turnstone.KindCanceled)
}
