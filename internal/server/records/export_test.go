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
