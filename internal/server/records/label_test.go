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

// byUID is how an operator of objects asks for the sandbox of one.
func byUID(uid string) records.Filter {
	return records.Filter{Kind: records.Sandbox, Labels: map[string]string{"kubernetes.uid": uid, "kubernetes.cluster": "c"}}
}

// fill creates sandboxes with labels, or without.
func fill(t testing.TB, db *records.DB, count int, labels bool) {
	t.Helper()
	for done := 0; done < count; {
		var some []records.Object
		for ; done < count && len(some) < 500; done++ {
			o := object()
			if labels {
				o.Labels = map[string]string{"kubernetes.uid": fmt.Sprint("u", done), "kubernetes.cluster": "c"}
			}
			some = append(some, o)
		}
		if _, _, err := db.Create(t.Context(), nil, some...); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLabelHasIndex: the sandbox of an object is found by an index, also in a database that an earlier
// program has made and filled.
func TestLabelHasIndex(t *testing.T) {
	path, schema := filepath.Join(t.TempDir(), "server.db"), ""
	for name, x := range map[string]struct {
		open    func(t *testing.T) *records.DB
		earlier []string // makes the tables those of the version before
	}{
		"sqlite": {func(t *testing.T) *records.DB { return open(t, path, recordstest.NewClock()) },
			[]string{"DROP INDEX objects_label", "PRAGMA user_version = 3"}},
		"postgres": {func(t *testing.T) *records.DB {
			if schema == "" {
				schema = pgtest.Shared(t).Schema("label")
			}
			return openPostgres(t, recordstest.NewClock(), records.Options{Schema: schema})
		}, []string{"DROP INDEX objects_label", "UPDATE migrations SET version = 1 WHERE part = 'records'"}},
	} {
		t.Run(name, func(t *testing.T) {
			db := x.open(t)
			fill(t, db, 1000, true)
			fill(t, db, 1000, false)
			hasIndex(t, db)
			if err := records.Exec(t.Context(), db, x.earlier...); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = x.open(t)
			defer func() { _ = db.Close() }()
			hasIndex(t, db)
		})
	}
}

func hasIndex(t *testing.T, db *records.DB) {
	t.Helper()
	if err := records.Exec(t.Context(), db, "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	plan, err := records.Plan(t.Context(), db, "a", byUID("u7"))
	if err != nil || !strings.Contains(plan, "objects_label") {
		t.Errorf("the index is not used: %v\n%s", err, plan)
	}
	all, _, err := db.List(t.Context(), "a", byUID("u7"), records.Page{})
	if err != nil || len(all) != 1 || all[0].Labels["kubernetes.uid"] != "u7" {
		t.Errorf("found %v: %v", all, err)
	}
}

// BenchmarkByLabel finds one of a tenant's sandboxes by the ID of its object.
func BenchmarkByLabel(b *testing.B) {
	for _, count := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprint("sqlite/", count), func(b *testing.B) {
			db := open(b, filepath.Join(b.TempDir(), "server.db"), recordstest.NewClock())
			defer func() { _ = db.Close() }()
			byLabel(b, db, count)
		})
		b.Run(fmt.Sprint("postgres/", count), func(b *testing.B) {
			db := openPostgres(b, recordstest.NewClock(), records.Options{})
			defer func() { _ = db.Close() }()
			byLabel(b, db, count)
		})
	}
}

func byLabel(b *testing.B, db *records.DB, count int) {
	b.Helper()
	fill(b, db, count, true)
	b.ResetTimer()
	for n := range b.N {
		uid := fmt.Sprint("u", n*7919%count)
		if all, _, err := db.List(b.Context(), "a", byUID(uid), records.Page{}); err != nil || len(all) != 1 {
			b.Fatalf("found %d: %v", len(all), err)
		}
	}
}
