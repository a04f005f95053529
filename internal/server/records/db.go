package records

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"time"

	"turnstone.dev/turnstone"
)

// migrations are applied in order, and each database has its own. A released migration is never
// changed.
//
//go:embed migrations/*/*.sql
var migrations embed.FS

// sizeTime bounds the question for the size.
const sizeTime = 5 * time.Second

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
	// Fence is that of the Term in which the store writes; 0: any. PostgreSQL refuses writes after
	// the next Term has begun.
	Fence int64
	// Passwords is a file as PGPASSFILE names one; empty: that of PGPASSFILE.
	Passwords string
	// Schema is where PostgreSQL has the tables: "controller".
	Schema string
	// Silent is how long the process of a transaction may be silent before PostgreSQL ends it: 3
	// seconds, because a new leader may wait for it.
	Silent time.Duration
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
	if o.Schema == "" {
		o.Schema = defaultSchema
	}
	if o.Silent == 0 {
		o.Silent = 3 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Elapsed == nil {
		began := time.Now()
		o.Elapsed = func() time.Duration { return time.Since(began) }
	}
}

// A DB is a Store in a file of SQLite, or in PostgreSQL.
type DB struct {
	d       dialect
	reads   querier
	options Options
	secret  []byte        // authenticates tokens of pages
	age     time.Duration // of the database, when it was opened
	opened  time.Duration // Elapsed then

	group  group
	halted context.Context // of all writes
	halt   context.CancelFunc
}

var _ Store = (*DB)(nil)

// Open opens the database at the path of a file, or at a URL postgres://…, and creates its tables; a
// file is private to its user. A database of a newer program is an error of kind Unavailable, a
// damaged one of kind Integrity.
func Open(ctx context.Context, database string, o Options) (*DB, error) {
	o.setDefaults()
	db := &DB{options: o}
	var err error
	if IsURL(database) {
		var p *postgres
		if p, err = openPostgres(ctx, o, database); err == nil {
			db.d = p
		}
	} else {
		var s *sqlite
		if s, err = openSQLite(ctx, database); err == nil {
			db.d = s
		}
	}
	if err != nil {
		return nil, err
	}
	db.reads = db.d.reads()
	db.halted, db.halt = context.WithCancel(context.WithoutCancel(ctx))
	if err := db.load(ctx); err != nil {
		return nil, errors.Join(db.fail("open", err), db.Close())
	}
	return db, nil
}

// Halt ends all writes at once, and refuses later ones: another controller leads.
func (db *DB) Halt() { db.halt() }

// Close closes the database.
func (db *DB) Close() error { db.halt(); return db.d.close() }

// load reads what the database keeps about itself.
func (db *DB) load(ctx context.Context) error {
	_, err := query(ctx, db.reads, func(rows *sql.Rows) (bool, error) {
		return true, rows.Scan(&db.age, &db.secret)
	}, "SELECT (SELECT value FROM meta WHERE name = 'age'), ("+db.d.secret()+")")
	if err == nil && len(db.secret) != 32 {
		err = turnstone.Errorf("records.open", turnstone.KindIntegrity, db.d.name(),
			"has no secret").WithHint(hintDamaged)
	}
	db.opened = db.options.Elapsed()
	return err
}

// Check reports a damaged database; it reads all of it.
func (db *DB) Check(ctx context.Context) error { return db.fail("check", db.d.check(ctx)) }

// Size returns the size of the database in bytes, with its log if it is a file.
func (db *DB) Size() int64 { return db.d.size() }

// fail converts an error of the database to an error with a hint.
func (db *DB) fail(op string, err error) error { return db.d.fail(op, err) }

// now returns the time of the wall clock.
func (db *DB) now() time.Time { return db.options.Now().UTC() }

// ageNow returns the time that servers of this database have run. It never goes back: what is
// stored is stored with it.
func (db *DB) ageNow(ctx context.Context, tx *transaction) (age time.Duration, err error) {
	age = db.age + db.options.Elapsed() - db.opened
	err = tx.QueryRowContext(ctx, `UPDATE meta SET value = {max}(value, ?) WHERE name = 'age'
		RETURNING value`, int64(age)).Scan(&age)
	return age, err
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
