package records

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
)

// Plan returns how the database finds the objects of a filter.
func Plan(ctx context.Context, db *DB, tenant string, f Filter) (string, error) {
	explain, reads := "EXPLAIN ", db.reads
	scan := func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(&s) }
	if s, ok := db.d.(*sqlite); ok {
		explain, reads = "EXPLAIN QUERY PLAN ", s.readers.DB // a plan that is kept stays as it was
		scan = func(rows *sql.Rows) (s string, err error) { return s, rows.Scan(new(int), new(int), new(int), &s) }
	}
	text, args := f.query(db.d, tenant, math.MaxInt64, 51)
	lines, err := query(ctx, reads, scan, explain+text, args...)
	return strings.Join(lines, "\n"), err
}

// Exec runs statements on the database.
func Exec(ctx context.Context, db *DB, all ...string) error {
	for _, text := range all {
		err := db.write(ctx, false, "exec", func(ctx context.Context, tx *transaction) error {
			_, err := tx.ExecContext(ctx, text)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// LimitPages makes SQLite report a full disk when the file would have more pages; it cannot have
// fewer than it has.
func LimitPages(ctx context.Context, db *DB, pages int) error {
	_, err := db.d.(*sqlite).durable.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", pages))
	return err
}

// WriteSlowly writes in a transaction in which it calls f.
func WriteSlowly(ctx context.Context, db *DB, f func()) error {
	return db.write(ctx, false, "slow", func(ctx context.Context, tx *transaction) error {
		f()
		_, err := tx.ExecContext(ctx, "UPDATE meta SET value = value WHERE name = 'age'")
		return err
	})
}

// Together runs changes in one group, as if they came at the same time, and returns their errors.
func Together(ctx context.Context, db *DB, all ...func(*Writer) error) []error {
	var list []*write
	for _, f := range all {
		list = append(list, &write{wake: make(chan bool, 1),
			change: func(ctx context.Context, tx *transaction) error {
				return f(&Writer{ctx, tx})
			}})
	}
	db.run(ctx, list)
	var errs []error
	for _, w := range list {
		errs = append(errs, w.err)
	}
	return errs
}

// A Writer is a transaction of a group.
type Writer struct {
	ctx context.Context
	tx  *transaction
}

// Tenant stores a tenant.
func (w *Writer) Tenant(name string) error {
	_, err := w.tx.ExecContext(w.ctx, "INSERT INTO tenants VALUES (?, FALSE, 1)", name)
	return err
}
