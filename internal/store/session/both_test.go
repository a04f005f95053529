package session

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg/pgtest"
)

// A placer returns a place without a database: a folder for SQLite's, or a URL with a schema.
type placer func(t testing.TB) string

// both runs a test against both databases.
func both(t *testing.T, test func(t *testing.T, place placer)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		test(t, func(t testing.TB) string { return t.TempDir() })
	})
	t.Run("postgres", func(t *testing.T) { test(t, shared) })
}

func shared(t testing.TB) string {
	s := pgtest.Shared(t)
	return s.URL + "#" + s.Schema(t.Name())
}

func open(t testing.TB, place string) *DB {
	t.Helper()
	db, err := openPlace(t.Context(), place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openPlace(ctx context.Context, place string) (*DB, error) {
	if url, schema, is := strings.Cut(place, "#"); is {
		return OpenShared(ctx, url, schema, lease.Life)
	}
	return Open(ctx, filepath.Join(place, "context.db"))
}

// leasesOf returns the names of all leases, also of those that nobody holds any longer.
func leasesOf(t testing.TB, db *DB) (names []string) {
	t.Helper()
	if !db.Shared() {
		entries, err := os.ReadDir(leasesDir(db))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	rows, err := db.sql.QueryContext(t.Context(), "SELECT name FROM leases ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// died lets time pass until the leases have ended that nobody renews: those of a killed process.
func died(t testing.TB, db *DB) {
	t.Helper()
	if !db.Shared() {
		return // the kernel has ended them
	}
	if _, err := db.sql.ExecContext(t.Context(), "UPDATE leases SET expires = '-infinity'"); err != nil {
		t.Fatal(err)
	}
}
