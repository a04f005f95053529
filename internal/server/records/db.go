package records

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	_ "modernc.org/sqlite" // registers "sqlite" with database/sql

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sqlitefault"
)

// migrations are applied in order; PRAGMA user_version counts the applied migrations. A released
// migration is never changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// schemaVersion is the number of the last file in migrations.
const schemaVersion = 3

// Options are for Open. Zero values select the defaults.
type Options struct {
	// Keep is how long an object stays after its end and the end of its key, and the record of a
	// token after the end of the token: 7 days. KeepUsage is the same for spans of usage: 400 days.
	Keep, KeepUsage time.Duration
	// Now is the wall clock, and Elapsed a clock that never jumps.
	Now     func() time.Time
	Elapsed func() time.Duration
	// Watch is told of each write; nil: nobody is.
	Watch Watch
}

// A Watch is told of writes. It is safe for concurrent use.
type Watch interface {
	// Wrote is told how long a write waited for earlier ones, how long it took then, and its error.
	Wrote(waited, took time.Duration, err error)
}

func (o *Options) setDefaults() {
	if o.Keep == 0 {
		o.Keep = 7 * 24 * time.Hour
	}
	if o.KeepUsage == 0 {
		o.KeepUsage = 400 * 24 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Elapsed == nil {
		began := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(began) }
	}
}

// A DB is a Store in a file of SQLite.
type DB struct {
	path    string
	options Options
	secret  []byte        // authenticates tokens of pages
	age     time.Duration // of the database, when it was opened
	opened  time.Duration // Elapsed then

	writing sync.Mutex // held by the writer: SQLite has one, and waits for it by sleeping
	durable *sql.DB    // commits are synced to the disk
	soft    *sql.DB    // commits survive the process, and perhaps no loss of power
	readers *reader    // nil: not open
}

var _ Store = (*DB)(nil)

// Open opens the database at path, and creates it, private to its user, if it does not exist. A
// database of a newer program is an error of kind Unavailable, a damaged one of kind Integrity.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	o.setDefaults()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, dbError("open", path, err)
	}
	_ = f.Close() // SQLite gives its other files the mode of this file
	db := &DB{path: path, options: o}
	if db.durable, err = pool(path, 1, "synchronous(FULL)"); err == nil {
		if db.soft, err = pool(path, 1, "synchronous(NORMAL)"); err == nil {
			var p *sql.DB
			if p, err = pool(path, 4, "query_only(1)"); err == nil {
				db.readers = &reader{DB: p}
			}
		}
	}
	if err == nil {
		err = db.migrate(ctx)
	}
	if err == nil {
		err = db.load(ctx)
	}
	if err != nil {
		return nil, errors.Join(dbError("open", path, err), db.Close())
	}
	return db, nil
}

// pool opens connections.
func pool(path string, size int, pragma string) (*sql.DB, error) {
	values := url.Values{"_pragma": {"busy_timeout(20000)", "foreign_keys(1)", pragma}}
	if size == 1 {
		// A transaction that began as a reader may not become a writer.
		values.Set("_txlock", "immediate")
	}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: values.Encode()}
	p, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	p.SetMaxOpenConns(size)
	return p, nil
}

// Close closes the database.
func (db *DB) Close() error {
	var all []error
	if db.readers != nil {
		all = append(all, db.readers.Close())
	}
	for _, p := range []*sql.DB{db.soft, db.durable} {
		if p != nil {
			all = append(all, p.Close())
		}
	}
	return errors.Join(all...)
}

// migrate updates the schema to schemaVersion.
func (db *DB) migrate(ctx context.Context) error {
	var version int
	if err := db.durable.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return dbError("open", db.path, err)
	}
	if version > schemaVersion || version < 0 {
		return turnstone.Errorf("records.open", turnstone.KindUnavailable, db.path,
			"is of version %d, and this program supports versions up to %d",
			version, schemaVersion).
			WithHint("use the newer turn that created it, or another file")
	}
	if version == 0 {
		if _, err := db.durable.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
			return dbError("migrate", db.path, err)
		}
	}
	return db.write(ctx, db.durable, "migrate", func(tx *sql.Tx) error {
		// Another process may have been faster.
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		for ; version < schemaVersion; version++ {
			text, err := migrations.ReadFile(fmt.Sprintf("migrations/%04d.sql", version+1))
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, string(text)); err != nil {
				return fmt.Errorf("to version %d: %w", version+1, err)
			}
			_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version+1))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// load reads what the database keeps about itself.
func (db *DB) load(ctx context.Context) error {
	err := db.readers.QueryRowContext(ctx, `SELECT
		(SELECT value FROM meta WHERE name = 'age'),
		(SELECT value FROM meta WHERE name = 'secret')`).Scan(&db.age, &db.secret)
	if err == nil && len(db.secret) != 32 {
		err = turnstone.Errorf("records.open", turnstone.KindIntegrity, db.path,
			"has no secret").WithHint(hintDamaged)
	}
	db.opened = db.options.Elapsed()
	return err
}

// Check reports a damaged database; it reads all of it.
func (db *DB) Check(ctx context.Context) error {
	var text string
	err := db.readers.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&text)
	if err == nil && text != "ok" {
		return turnstone.Errorf("records.check", turnstone.KindIntegrity, db.path, "%s", text).
			WithHint(hintDamaged)
	}
	return dbError("check", db.path, err)
}

// now returns the time of the wall clock.
func (db *DB) now() time.Time { return db.options.Now().UTC() }

// ageNow returns the time that servers of this database have run. It never goes back: what is
// stored is stored with it.
func (db *DB) ageNow(ctx context.Context, tx *sql.Tx) (age time.Duration, err error) {
	age = db.age + db.options.Elapsed() - db.opened
	err = tx.QueryRowContext(ctx, `UPDATE meta SET value = max(value, ?) WHERE name = 'age'
		RETURNING value`, int64(age)).Scan(&age)
	return age, err
}

// write runs f in a transaction of a pool.
func (db *DB) write(ctx context.Context, p *sql.DB, op string, f func(tx *sql.Tx) error) error {
	if db.options.Watch == nil {
		db.writing.Lock()
		defer db.writing.Unlock()
		return db.transact(ctx, p, op, f)
	}
	asked := time.Now()
	db.writing.Lock()
	began := time.Now()
	err := db.transact(ctx, p, op, f)
	took := time.Since(began)
	db.writing.Unlock()
	db.options.Watch.Wrote(began.Sub(asked), took, err)
	return err
}

// transact is write for the holder of db.writing.
func (db *DB) transact(ctx context.Context, p *sql.DB, op string, f func(tx *sql.Tx) error) error {
	tx, err := p.BeginTx(ctx, nil)
	if err != nil {
		return dbError(op, db.path, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback()
		return dbError(op, db.path, err)
	}
	return dbError(op, db.path, tx.Commit())
}

// Size returns the size of the database and its log in bytes, as far as the files are there.
func (db *DB) Size() (n int64) {
	for _, end := range []string{"", "-wal"} {
		if info, err := os.Stat(db.path + end); err == nil {
			n += info.Size()
		}
	}
	return n
}

// A querier is a pool or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// query runs a query and reads each row with scan. It reads all rows before it returns, because a
// transaction has a single connection. Without an error the result is not nil.
func query[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), text string,
	args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	all := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

const hintDamaged = "stop the server, then restore a copy of the file or recover it with " +
	"sqlite3; without it, nodes report their objects to a new one"

// dbError converts an error of SQLite to an error with a hint.
func dbError(op, path string, err error) error {
	return sqlitefault.Error(turnstone.Op("records."+op), path, err, sqlitefault.Hints{
		Full: "free some space on the disk of the database", Damaged: hintDamaged,
		Access: "check the permissions and the disk of the database and its folder"})
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
