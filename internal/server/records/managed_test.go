package records_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"turnstone.dev/turnstone/internal/pg/pgtest"
	"turnstone.dev/turnstone/internal/server/records"
	"turnstone.dev/turnstone/internal/server/records/recordstest"
)

// by is how a controller of objects asks for the sandbox of one, or, with "/" at the end, for those of many.
func by(path string) records.Filter {
	return records.Filter{Kind: records.Sandbox, ManagedBy: "kubernetes/c/" + path}
}

// fill creates sandboxes that are managed, or not.
func fill(t testing.TB, db *records.DB, count int, managed bool) {
	t.Helper()
	for done := 0; done < count; {
		var some []records.Object
		for ; done < count && len(some) < 500; done++ {
			o := object()
			if managed {
				o.ManagedBy = fmt.Sprintf("kubernetes/c/default/n%d/u%d", done, done)
			}
			some = append(some, o)
		}
		if _, _, err := db.Create(t.Context(), nil, some...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestManagedHasIndex: the sandbox of an object is found by an index, also in a database that an earlier
// program has made and filled, whose sandboxes nothing manages.
func TestManagedHasIndex(t *testing.T) {
	earlier := []string{"DROP INDEX objects_managed", "ALTER TABLE objects DROP COLUMN managed_by",
		"CREATE INDEX objects_label ON objects(tenant, kind, labels)"}
	earlier = earlier[:len(earlier):len(earlier)] // each database appends its own
	path, schema := filepath.Join(t.TempDir(), "server.db"), ""
	for name, x := range map[string]struct {
		open    func(t *testing.T) *records.DB
		earlier []string // makes the tables those of the version before
	}{
		"sqlite": {func(t *testing.T) *records.DB { return open(t, path, recordstest.NewClock()) },
			append(earlier, "PRAGMA user_version = 4")},
		"postgres": {func(t *testing.T) *records.DB {
			if schema == "" {
				schema = pgtest.Shared(t).Schema("managed")
			}
			return openPostgres(t, recordstest.NewClock(), records.Options{Schema: schema})
		}, append(earlier, "UPDATE migrations SET version = 2 WHERE part = 'records'")},
	} {
		t.Run(name, func(t *testing.T) {
			db := x.open(t)
			fill(t, db, 1000, false)
			fill(t, db, 1000, true)
			hasIndex(t, db)
			if err := records.Exec(t.Context(), db, x.earlier...); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = x.open(t)
			defer func() { _ = db.Close() }()
			if all, _, err := db.List(t.Context(), "a", by(""), records.Page{}); err != nil || len(all) > 0 {
				t.Errorf("of earlier sandboxes %d are managed: %v", len(all), err)
			}
			fill(t, db, 1000, true)
			hasIndex(t, db)
		})
	}
}

func hasIndex(t *testing.T, db *records.DB) {
	t.Helper()
	if err := records.Exec(t.Context(), db, "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"default/n7/u7", "default/n7/"} {
		plan, err := records.Plan(t.Context(), db, "a", by(path))
		if err != nil || !strings.Contains(plan, "objects_managed") {
			t.Errorf("%s: the index is not used: %v\n%s", path, err, plan)
		}
		all, _, err := db.List(t.Context(), "a", by(path), records.Page{})
		if err != nil || len(all) != 1 || all[0].ManagedBy != "kubernetes/c/default/n7/u7" {
			t.Errorf("%s: found %v: %v", path, all, err)
		}
	}
}

// BenchmarkByManaged finds one of a tenant's sandboxes by the ID of its object.
func BenchmarkByManaged(b *testing.B) {
	for _, count := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint("sqlite/", count), func(b *testing.B) {
			db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
			defer func() { _ = db.Close() }()
			byManaged(b, db, count)
		})
		b.Run(fmt.Sprint("postgres/", count), func(b *testing.B) {
			db := openPostgres(b, recordstest.NewClock(), records.Options{})
			defer func() { _ = db.Close() }()
			byManaged(b, db, count)
		})
	}
}

func byManaged(b *testing.B, db *records.DB, count int) {
	b.Helper()
	fill(b, db, count, true)
	b.ResetTimer()
	for n := range b.N {
		of := n * 7919 % count
		if all, _, err := db.List(b.Context(), "a", by(fmt.Sprintf("default/n%d/u%d", of, of)), records.Page{}); err != nil || len(all) != 1 {
			b.Fatalf("found %d: %v", len(all), err)
		}
	}
}
