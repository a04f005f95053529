package session

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/store/sweeps"
)

// postgresMigrations are those of a schema with sessions. A released migration is never changed.
//
//go:embed postgres/*.sql
var postgresMigrations embed.FS

// OpenShared opens the schema of the PostgreSQL database at url, which several machines may use
// concurrently, and creates what is missing. A turn's lease is a row, which lasts for life without being
// renewed, or for lease.Life if that is 0: see lease.Rows.
func OpenShared(ctx context.Context, url, schema string, life time.Duration) (*DB, error) {
	q, err := pg.Open(ctx, url, schema)
	if err != nil {
		return nil, err
	}
	d := &postgres{schema: schema, clock: &clock{steady: time.Now}}
	db := newDB(d, q, pg.Name(url))
	db.now = d.clock.now
	if db.rows, err = d.prepare(ctx, q, life); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	if db.sweeps, err = sweeps.Open(ctx, q, db.rows); err != nil {
		db.rows.Close()
		return nil, errors.Join(err, q.Close())
	}
	d.free = db.rows.Free("turns.id")
	db.leases = db.rows
	return db, nil
}

// postgres is the dialect of a schema.
type postgres struct {
	schema string
	free   string // a condition for turns without a lease
	clock  *clock
}

func (d *postgres) prepare(ctx context.Context, q *sql.DB, life time.Duration) (*lease.Rows, error) {
	files, err := fs.Sub(postgresMigrations, "postgres")
	if err != nil {
		return nil, err
	}
	if err := pg.Migrate(ctx, q, "sessions", files); err != nil {
		return nil, err
	}
	if err := d.clock.read(ctx, q); err != nil {
		return nil, d.fault("open", d.schema, err)
	}
	return lease.OpenRows(ctx, q, life)
}

func (*postgres) text(statement string) string { return pg.Placeholders(statement) }

// begin takes the schema's lock: as with SQLite, what a transaction has read stays true to its end.
// Transactions are a few statements; the serialization failures that PostgreSQL reports otherwise
// would be many on the small tables of a tenant.
func (d *postgres) begin(ctx context.Context, tx *sql.Tx) error {
	now, err := pg.LockAt(ctx, tx, "sessions "+d.schema)
	if err == nil {
		d.clock.set(now)
	}
	return err
}

func (*postgres) view() *sql.TxOptions {
	return &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
}

func (*postgres) fault(op, subject string, err error) error {
	return pg.Error(turnstone.Op("session."+op), subject, err)
}

func (*postgres) again(err error) bool { return pg.Conflict(err) || pg.Away(err) }

func (*postgres) later(err error) bool { return pg.Busy(err) || pg.Away(err) }

func (d *postgres) running() string { return "status = 'running' AND " + d.free }

// tables are those with rows of sessions.
func tables() []string {
	return []string{"sessions", "turns", "parents", "branches", "tags", "heads", "homes", "home_uses",
		"needs", "bases", "checkpoints"}
}

// check reads all rows: PostgreSQL checks references itself, and the pages that it reads if the
// database was made with checksums.
func (d *postgres) check(ctx context.Context, q *pool) ([]string, error) {
	var found []string
	for _, table := range tables() {
		var n int
		err := q.QueryRowContext(ctx, "SELECT count(t::text) FROM "+table+" t").Scan(&n)
		if code := pg.State(err); strings.HasPrefix(code, "XX") {
			found = append(found, "table "+table+": "+err.Error())
		} else if err != nil {
			return nil, d.fault("check", table, err)
		}
	}
	return found, nil
}

// erase rewrites the tables. PostgreSQL's log has the rows for some time, and so have backups.
func (d *postgres) erase(ctx context.Context, q *pool, remove func() error) error {
	if err := remove(); err != nil {
		return err
	}
	return d.scrub(ctx, q)
}

func (d *postgres) scrub(ctx context.Context, q *pool) error {
	_, err := q.ExecContext(ctx, "VACUUM FULL "+strings.Join(tables(), ", "))
	return d.fault("scrub", d.schema, err)
}

// DatabasePrefix begins the names of databases: see Identity.
const DatabasePrefix = "database-"

// Identity returns the name of the database in places that belong to it, such as a bucket, and the place
// of the objects of its turns; both are empty if the sessions are on this machine alone. The first call
// makes the name. store is empty until Claim.
func (db *DB) Identity(ctx context.Context) (id, store string, err error) {
	if db.rows == nil {
		return "", "", nil
	}
	err = db.write(ctx, func(tx *txn) error {
		err := tx.QueryRowContext(ctx, "SELECT id, store FROM identity").Scan(&id, &store)
		if errors.Is(err, sql.ErrNoRows) {
			id, store = DatabasePrefix+strings.ToLower(rand.Text()), ""
			_, err = tx.ExecContext(ctx, "INSERT INTO identity (id, store) VALUES (?, ?)", id, store)
		}
		return tx.fault("identity", db.name, err)
	})
	return id, store, err
}

// Claim notes that the objects of the turns are in the place where. Another place than that of an
// earlier call is an error of kind Unavailable. Identity was called before.
func (db *DB) Claim(ctx context.Context, where string) error {
	return db.write(ctx, func(tx *txn) error {
		var store string
		if err := tx.QueryRowContext(ctx, "SELECT store FROM identity").Scan(&store); err != nil {
			return tx.fault("claim", db.name, err)
		}
		switch store {
		case where:
			return nil
		case "":
			_, err := tx.ExecContext(ctx, "UPDATE identity SET store = ?", where)
			return tx.fault("claim", db.name, err)
		}
		return WrongStore(db, store, where)
	})
}

// WrongStore returns the error for a place that does not have the objects of the database's turns.
func WrongStore(db *DB, store, where string) error {
	return turnstone.Errorf("session.claim", turnstone.KindUnavailable, db.name,
		"has turns whose objects are in %s, and not in %s", store, where).
		WithHint("set TURN_STORE=" + store)
}

// Shared reports whether other machines use the database too.
func (db *DB) Shared() bool { return db.rows != nil }

// NotShared returns an error of kind Unavailable if other machines use the database too: what is an
// operation that sees this machine's files only.
func (db *DB) NotShared(what, why, hint string) error {
	if !db.Shared() {
		return nil
	}
	return turnstone.Errorf("session.shared", turnstone.KindUnavailable, what,
		"does not work with a database that other machines use too: %s", why).WithHint(hint)
}
