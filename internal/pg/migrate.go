package pg

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"

	"turnstone.dev/turnstone"
)

// Migrate updates the schema of pool to the newest version. files has the migrations 0001.sql,
// 0002.sql, and so on; a released migration is never changed. part names what the tables are for:
// each part of a schema has its own version, in the table migrations. Of concurrent callers one
// migrates. A schema of a newer program is an error of kind Unavailable.
func Migrate(ctx context.Context, pool *sql.DB, part string, files fs.FS) error {
	names, err := fs.Glob(files, "[0-9][0-9][0-9][0-9].sql")
	if err != nil {
		return err
	}
	newest := len(names)
	if version, err := versionOf(ctx, pool, part); err == nil && version == newest {
		return nil
	}
	err = Locked(ctx, pool, "migrate", func(tx *sql.Tx) error {
		const table = "CREATE TABLE IF NOT EXISTS migrations (part TEXT PRIMARY KEY, " +
			"version INTEGER NOT NULL)"
		if _, err := tx.ExecContext(ctx, table); err != nil {
			return err
		}
		version, err := versionOf(ctx, tx, part)
		if err != nil {
			return err
		}
		if version > newest {
			return turnstone.Errorf("pg.migrate", turnstone.KindUnavailable, "the database's "+part,
				"are of version %d, and this program supports versions up to %d", version, newest).
				WithHint("use the newer turn that created them")
		}
		for ; version < newest; version++ {
			if err := apply(ctx, tx, files, version+1); err != nil {
				return fmt.Errorf("to version %d: %w", version+1, err)
			}
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO migrations (part, version) VALUES ($1, $2) "+
			"ON CONFLICT (part) DO UPDATE SET version = $2", part, newest)
		return err
	})
	return Error("pg.migrate", part, err)
}

func apply(ctx context.Context, tx *sql.Tx, files fs.FS, version int) error {
	text, err := fs.ReadFile(files, fmt.Sprintf("%04d.sql", version))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, string(text))
	return err
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// versionOf returns 0 if the part has no version yet.
func versionOf(ctx context.Context, q querier, part string) (version int, err error) {
	err = q.QueryRowContext(ctx,
		"SELECT coalesce(max(version), 0) FROM migrations WHERE part = $1", part).Scan(&version)
	return version, err
}
