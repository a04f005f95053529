package session

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/store/sweeps"
)

// A DB is the database of sessions. Its methods are safe for concurrent use, also by several
// processes. A change is durable when its method returns.
type DB struct {
	dialect
	sql    *pool
	name   string // for messages: a path, or a URL
	leases lease.Leases
	rows   *lease.Rows    // leases, if they are rows; otherwise nil
	sweeps *sweeps.Sweeps // of all machines; nil: the objects are on this machine alone
	now    func() time.Time

	mu       sync.Mutex
	held     map[turnstone.TurnID]lease.Lease
	signHead HeadSigner // nil: heads are not logged
	sealer   Sealer     // see Seal

	waited atomic.Int64 // how often Finish found the database locked
}

// A dialect is what differs between the databases. All statements are written once, with SQLite's
// placeholders (? and ?1).
type dialect interface {
	// text returns a statement with the database's placeholders.
	text(statement string) string
	// begin lets one transaction that writes run at a time.
	begin(ctx context.Context, tx *sql.Tx) error
	// view is for a transaction that reads one moment.
	view() *sql.TxOptions
	// fault converts an error of the database to an error with a hint.
	fault(op, subject string, err error) error
	// again reports whether a transaction that failed with err before its end may succeed if it runs
	// again at once.
	again(err error) bool
	// later reports whether err is about the database's state, and not about what was asked.
	later(err error) bool
	// running is a condition for turns that run, or whose process died.
	running() string

	// check returns findings about the database's integrity.
	check(ctx context.Context, q *pool) ([]string, error)
	// erase runs remove so that the rows that it deletes are overwritten.
	erase(ctx context.Context, q *pool, remove func() error) error
	// scrub rewrites the database without older versions of its rows.
	scrub(ctx context.Context, q *pool) error
}

func newDB(d dialect, q *sql.DB, name string) *DB {
	return &DB{dialect: d, sql: &pool{q, d}, name: name, now: time.Now,
		held: map[turnstone.TurnID]lease.Lease{}}
}

// Close closes the database. Turns that were started through it and are not finished count as
// interrupted from then on.
func (db *DB) Close() error {
	db.mu.Lock()
	held := db.held
	db.held = map[turnstone.TurnID]lease.Lease{}
	db.mu.Unlock()
	for _, l := range held {
		l.Release()
	}
	if db.rows != nil {
		db.rows.Close()
	}
	return db.sql.Close()
}

// Check runs the database's integrity checks and returns their findings; none if it is intact.
func (db *DB) Check(ctx context.Context) ([]string, error) { return db.check(ctx, db.sql) }

// writePatience bounds the attempts of a transaction that others keep from running.
const writePatience = 10 * time.Second

// write runs f in a transaction, and again if the transaction was ended before its end by another, or
// by the database's absence: f has to set all that it changes.
func (db *DB) write(ctx context.Context, f func(tx *txn) error) error {
	pause := 5 * time.Millisecond
	for until := time.Now().Add(writePatience); ; pause = min(2*pause, time.Second) {
		ended, err := db.writeOnce(ctx, f)
		if err == nil || ended || !db.again(err) || ctx.Err() != nil || time.Now().After(until) {
			return db.fault("write", db.name, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return db.fault("write", db.name, err)
		}
	}
}

// writeOnce is write without another attempt. ended reports whether the transaction may be stored,
// although there is an error.
func (db *DB) writeOnce(ctx context.Context, f func(tx *txn) error) (ended bool, err error) {
	tx, err := db.sql.BeginTx(ctx, nil)
	if err != nil {
		return false, db.fault("begin", db.name, err)
	}
	if err := db.begin(ctx, tx); err != nil {
		_ = tx.Rollback()
		return false, db.fault("begin", db.name, err)
	}
	if err := f(&txn{tx, db.dialect}); err != nil {
		_ = tx.Rollback()
		return false, err
	}
	err = tx.Commit()
	return !db.again(err) || db.later(err), db.fault("commit", db.name, err)
}

// A querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	fault(op, subject string, err error) error
}

// A pool is a database whose statements are written once for all databases.
type pool struct {
	*sql.DB
	dialect
}

func (p *pool) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return p.DB.ExecContext(ctx, p.text(text), args...)
}

func (p *pool) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return p.DB.QueryContext(ctx, p.text(text), args...)
}

func (p *pool) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	return p.DB.QueryRowContext(ctx, p.text(text), args...)
}

// A txn is a transaction whose statements are written once for all databases.
type txn struct {
	*sql.Tx
	dialect
}

func (t *txn) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	return t.Tx.ExecContext(ctx, t.text(text), args...)
}

func (t *txn) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return t.Tx.QueryContext(ctx, t.text(text), args...)
}

func (t *txn) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	return t.Tx.QueryRowContext(ctx, t.text(text), args...)
}

// query runs a query and reads each row with scan. It reads all rows before it returns because
// there is only a single connection. Without an error the result is not nil. op is the operation of
// errors.
func query[T any](ctx context.Context, q querier, op string,
	scan func(*sql.Rows) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, q.fault(op, "", err)
	}
	defer func() { _ = rows.Close() }()
	all := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, q.fault(op, "", err)
		}
		all = append(all, v)
	}
	return all, q.fault(op, "", rows.Err())
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
