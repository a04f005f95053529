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
	"sync"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // registers "sqlite" with database/sql

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sqlitefault"
	"turnstone.dev/turnstone/internal/statedir"
)

// migrations are applied in order; PRAGMA user_version counts the applied migrations. A released
// migration is never changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// schemaVersion is the number of the last file in migrations.
const schemaVersion = 5

// A DB is the database of sessions. Its methods are safe for concurrent use, also by several
// processes. A change is durable when its method returns.
type DB struct {
	sql    *sql.DB
	path   string
	leases string // a folder
	now    func() time.Time

	mu       sync.Mutex
	held     map[turnstone.TurnID]*statedir.Lock
	signHead HeadSigner // nil: heads are not logged
	sealer   Sealer     // see Seal

	waited atomic.Int64 // how often Finish found the database locked
}

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
		return nil, dbError("open", path, err)
	}
	// SQLite gives its other files the mode of this file.
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: url.Values{
		"_txlock": {"immediate"}, // a transaction that began as a reader may not become a writer
		"_pragma": {"busy_timeout(20000)", "synchronous(FULL)", "foreign_keys(1)"},
	}.Encode()}).String()
	pool, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, dbError("open", path, err)
	}
	pool.SetMaxOpenConns(1)
	db := &DB{sql: pool, path: path,
		leases: filepath.Join(filepath.Dir(path), "leases"), now: time.Now,
		held: map[turnstone.TurnID]*statedir.Lock{}}
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return db, nil
}

// Close closes the database. Turns that were started through it and are not finished count as
// interrupted from then on.
func (db *DB) Close() error {
	db.mu.Lock()
	for id, l := range db.held {
		l.Release()
		delete(db.held, id)
	}
	db.mu.Unlock()
	return db.sql.Close()
}

// migrate updates the schema to schemaVersion.
func (db *DB) migrate(ctx context.Context) error {
	version, err := db.version(ctx)
	if err != nil || version == schemaVersion {
		return err
	}
	// A single process at a time: changing the journal mode does not wait for other processes.
	lock, err := statedir.Acquire(ctx, db.path+".lock", nil)
	if err != nil {
		return dbError("migrate", db.path, err)
	}
	defer lock.Release()
	if version, err = db.version(ctx); err != nil {
		return err
	}
	if version == 0 {
		if _, err := db.sql.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
			return dbError("migrate", db.path, err)
		}
	}
	for ; version < schemaVersion; version++ {
		if err := db.apply(ctx, version+1); err != nil {
			return dbError("migrate", db.path, fmt.Errorf("to version %d: %w", version+1, err))
		}
	}
	return nil
}

func (db *DB) version(ctx context.Context) (int, error) {
	var version int
	if err := db.sql.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return 0, dbError("open", db.path, err)
	}
	if version > schemaVersion || version < 0 {
		return 0, turnstone.Errorf("session.open", turnstone.KindUnavailable, db.path,
			"is of version %d, and this program supports versions up to %d",
			version, schemaVersion).
			WithHint("use the newer turn that created it, or another TURN_HOME")
	}
	return version, nil
}

// apply applies a migration and its number in a single transaction.
func (db *DB) apply(ctx context.Context, version int) error {
	text, err := migrations.ReadFile(fmt.Sprintf("migrations/%04d.sql", version))
	if err != nil {
		return err
	}
	return db.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
		return err
	})
}

// write runs f in a transaction.
func (db *DB) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return dbError("begin", db.path, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	if err := tx.Commit(); err != nil {
		return dbError("commit", db.path, err)
	}
	return nil
}

// A querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// query runs a query and reads each row with scan. It reads all rows before it returns because
// there is only a single connection. Without an error the result is not nil. op is the operation of
// errors.
func query[T any](ctx context.Context, q querier, op string,
	scan func(*sql.Rows) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, dbError(op, "", err)
	}
	defer func() { _ = rows.Close() }()
	all := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, dbError(op, "", err)
		}
		all = append(all, v)
	}
	return all, dbError(op, "", rows.Err())
}

// dbError converts an error of SQLite to an error with a hint.
func dbError(op, path string, err error) error {
	return sqlitefault.Error(turnstone.Op("session."+op), path, err, sqlitefault.Hints{
		Full: "free some disk space, such as with turn gc",
		Damaged: "restore a copy of the file, or recover it with sqlite3; receipts are in turns/ " +
			"beside it",
		Access: "check the permissions and the disk of the state directory"})
}

// unixNano and fromUnixNano convert times to and from the database.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromUnixNano(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
