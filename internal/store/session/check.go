package session

import (
	"context"
	"fmt"
)

// maxFindings bounds the findings of each kind that Check returns.
const maxFindings = 100

// Check runs SQLite's integrity checks and returns their findings; none if the database is intact.
func (db *DB) Check(ctx context.Context) ([]string, error) {
	var found []string
	rows, err := db.sql.QueryContext(ctx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxFindings))
	if err != nil {
		return nil, dbError("check", db.path, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, dbError("check", db.path, err)
		}
		if line != "ok" {
			found = append(found, line)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, dbError("check", db.path, err)
	}
	_ = rows.Close()
	foreign, err := db.sql.QueryContext(ctx,
		`SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2`)
	if err != nil {
		return nil, dbError("check", db.path, err)
	}
	defer func() { _ = foreign.Close() }()
	for foreign.Next() {
		var table, parent string
		var n int
		if err := foreign.Scan(&table, &parent, &n); err != nil {
			return nil, dbError("check", db.path, err)
		}
		found = append(found, fmt.Sprintf("%d rows of %s refer to missing %s", n, table, parent))
	}
	return found, dbError("check", db.path, foreign.Err())
}
