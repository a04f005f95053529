package sqlitefault_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	_ "modernc.org/sqlite"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sqlitefault"
)

// TestError makes SQLite fail, and looks at what a user is told.
func TestError(t *testing.T) {
	dir := t.TempDir()
	open := func(name, pragma string) *sql.DB {
		db, err := sql.Open("sqlite", filepath.Join(dir, name)+"?_pragma="+pragma)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
	exec := func(db *sql.DB, text string) error { _, err := db.Exec(text); return err }
	if err := os.WriteFile(filepath.Join(dir, "damaged"), make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	holder, waiter := open("busy", "busy_timeout(0)"), open("busy", "busy_timeout(0)")
	holder.SetMaxOpenConns(1)
	if err := exec(holder, "CREATE TABLE t (a); BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	_, noFile := os.ReadFile(filepath.Join(dir, "none"))
	typed := turnstone.Errorf("a.b", turnstone.KindNotFound, "it", "is not here")
	for _, c := range []struct {
		name string
		err  error
		kind turnstone.Kind
		hint string
	}{
		{"full", exec(open("full", "max_page_count(2)"),
			"CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(100000))"),
			turnstone.KindExhausted, "full"},
		{"no room", fmt.Errorf("write: %w", syscall.ENOSPC), turnstone.KindExhausted, "full"},
		{"damaged", exec(open("damaged", "busy_timeout(0)"), "SELECT * FROM sqlite_schema"),
			turnstone.KindIntegrity, "damaged"},
		{"no folder", exec(open("none/db", "busy_timeout(0)"), "SELECT 1"),
			turnstone.KindUnavailable, "access"},
		{"no file", noFile, turnstone.KindUnavailable, "access"},
		{"busy", exec(waiter, "BEGIN IMMEDIATE"), turnstone.KindUnavailable,
			"another process holds the database for long; try again"},
		{"canceled", context.Canceled, turnstone.KindCanceled, ""},
		{"late", context.DeadlineExceeded, turnstone.KindTimeout, ""},
		{"syntax", exec(open("full", "busy_timeout(0)"), "SELECT FROM"), turnstone.KindInternal, ""},
		{"typed", typed, turnstone.KindNotFound, ""},
	} {
		if c.err == nil {
			t.Errorf("%s: SQLite did not fail", c.name)
			continue
		}
		err := sqlitefault.Error("x.open", "the/path", c.err,
			sqlitefault.Hints{Full: "full", Damaged: "damaged", Access: "access"})
		if k, h := turnstone.KindOf(err), turnstone.HintOf(err); k != c.kind || h != c.hint {
			t.Errorf("%s: kind %v, hint %q of %v", c.name, k, h, err)
		}
	}
	if err := sqlitefault.Error("x.open", "the/path", nil, sqlitefault.Hints{}); err != nil {
		t.Error(err)
	}
}
