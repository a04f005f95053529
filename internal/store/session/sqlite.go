package session

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // registers "sqlite" with database/sql

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/sqlitefault"
	"turnstone.dev/turnstone/internal/statedir"
)

// sqliteMigrations are applied in order; PRAGMA user_version counts the applied migrations. A
// released migration is never changed.
//
//go:embed sqlite/*.sql
var sqliteMigrations embed.FS

// schemaVersion is the number of the last file in sqlite.
const schemaVersion = 5

// Open opens the database at path, and creates it, private to its user, if it does not exist.
// Leases are files in the folder "leases" beside it. A database of a newer program is an error of
// kind Unavailable.
func Open(ctx context.Context, path string) (*DB, error) {
	// An existing file is not opened here: closing it would release the locks that another DB of this
	// process has on it (fcntl(2)), and another process could then remove the log that it writes.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = f.Close()
	} else if _, exists := os.Stat(path); errors.Is(err, os.ErrExist) && exists == nil {
		err = nil
	}
	if err != nil {
		return nil, sqliteFault("open", path, err)
	}
	// SQLite gives its other files the mode of this file.
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_txlock": {"immediate"}, // a transaction that began as a reader may not become a writer
		"_pragma": {"busy_timeout(20000)", "synchronous(FULL)", "foreign_keys(1)"},
	}.Encode()}).String()
	pool, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, sqliteFault("open", path, err)
	}
	pool.SetMaxOpenConns(1)
	db := newDB(sqlite{path}, pool, path)
	db.leases = lease.Files{Dir: filepath.Join(filepath.Dir(path), "leases")}
	if err := migrateSQLite(ctx, db); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return db, nil
}

// sqlite is the dialect of the database at path.
type sqlite struct{ path string }

func (sqlite) text(statement string) string { return statement }

// begin does nothing: _txlock does it.
func (sqlite) begin(context.Context, *sql.Tx) error { return nil }

func (sqlite) view() *sql.TxOptions { return nil }

func (sqlite) fault(op, subject string, err error) error { return sqliteFault(op, subject, err) }

func sqliteFault(op, subject string, err error) error {
	return sqlitefault.Error(turnstone.Op("session."+op), subject, err, sqlitefault.Hints{
		Full: "free some disk space, such as with turn gc",
		Damaged: "restore a copy of the file, or recover it with sqlite3; receipts are in turns/ " +
			"beside it",
		Access: "check the permissions and the disk of the state directory"})
}

// again: busy_timeout has waited.
func (sqlite) again(error) bool { return false }

func (sqlite) later(err error) bool { return sqlitefault.Busy(err) }

func (sqlite) running() string { return "status = 'running'" }

// migrateSQLite updates the schema to schemaVersion.
func migrateSQLite(ctx context.Context, db *DB) error {
	version, err := sqliteVersion(ctx, db)
	if err != nil || version == schemaVersion {
		return err
	}
	// A single process at a time: changing the journal mode does not wait for other processes.
	lock, err := statedir.Acquire(ctx, db.name+".lock", nil)
	if err != nil {
		return db.fault("migrate", db.name, err)
	}
	defer lock.Release()
	if version, err = sqliteVersion(ctx, db); err != nil {
		return err
	}
	if version == 0 {
		if _, err := db.sql.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
			return db.fault("migrate", db.name, err)
		}
	}
	for ; version < schemaVersion; version++ {
		if err := applySQLite(ctx, db, version+1); err != nil {
			return db.fault("migrate", db.name, fmt.Errorf("to version %d: %w", version+1, err))
		}
	}
	return nil
}

func sqliteVersion(ctx context.Context, db *DB) (int, error) {
	var version int
	if err := db.sql.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return 0, db.fault("open", db.name, err)
	}
	if version > schemaVersion || version < 0 {
		return 0, turnstone.Errorf("session.open", turnstone.KindUnavailable, db.name,
			"is of version %d, and this program supports versions up to %d",
			version, schemaVersion).
			WithHint("use the newer turn that created it, or another TURN_HOME")
	}
	return version, nil
}

// applySQLite applies a migration and its number in a single transaction.
func applySQLite(ctx context.Context, db *DB, version int) error {
	text, err := sqliteMigrations.ReadFile(fmt.Sprintf("sqlite/%04d.sql", version))
	if err != nil {
		return err
	}
	return db.write(ctx, func(tx *txn) error {
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
		return err
	})
}

// maxFindings bounds the findings of each kind that Check returns.
const maxFindings = 100

func (d sqlite) check(ctx context.Context, q *pool) ([]string, error) {
	var found []string
	rows, err := q.QueryContext(ctx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxFindings))
	if err != nil {
		return nil, q.fault("check", d.path, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, q.fault("check", d.path, err)
		}
		if line != "ok" {
			found = append(found, line)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, q.fault("check", d.path, err)
	}
	_ = rows.Close()
	foreign, err := q.QueryContext(ctx,
		`SELECT "table", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2`)
	if err != nil {
		return nil, q.fault("check", d.path, err)
	}
	defer func() { _ = foreign.Close() }()
	for foreign.Next() {
		var table, parent string
		var n int
		if err := foreign.Scan(&table, &parent, &n); err != nil {
			return nil, q.fault("check", d.path, err)
		}
		found = append(found, fmt.Sprintf("%d rows of %s refer to missing %s", n, table, parent))
	}
	return found, q.fault("check", d.path, foreign.Err())
}

func (d sqlite) erase(ctx context.Context, q *pool, remove func() error) error {
	if _, err := q.ExecContext(ctx, "PRAGMA secure_delete = ON"); err != nil {
		return q.fault("erase", d.path, err)
	}
	err := remove()
	if err == nil {
		err = d.emptyLog(ctx, q)
	}
	_, off := q.ExecContext(ctx, "PRAGMA secure_delete = OFF")
	return errors.Join(err, q.fault("erase", d.path, off))
}

func (d sqlite) scrub(ctx context.Context, q *pool) error {
	if _, err := q.ExecContext(ctx, "VACUUM"); err != nil {
		return q.fault("scrub", d.path, err)
	}
	return d.emptyLog(ctx, q)
}

// emptyLog empties the write-ahead log, which has older versions of pages. Other processes that read
// keep it for as long as they do.
func (d sqlite) emptyLog(ctx context.Context, q *pool) error {
	_, err := q.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return q.fault("scrub", d.path, err)
}
