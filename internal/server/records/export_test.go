package records

import (
	"context"
	"fmt"
)

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
