// Package shared has what the nodes of a server tell each other of a tenant, in the schema of the
// tenant's sessions: whose the sessions are, and which turns run. Nodes without a common database keep it in files.
package shared

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
)

// migrations are those of a tenant's schema. A released migration is never changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// schema is that of a URL without one, as for the sessions.
const schema = "turn"

// maxConns bounds the connections of a tenant: statements are short.
const maxConns = 2

// A DB is a tenant's schema. Its methods are safe for concurrent use, also by several nodes.
type DB struct {
	pool   *sql.DB
	schema string
	life   time.Duration
}

// Open opens the schema of the database at url, and creates what is missing.
func Open(ctx context.Context, url string) (*DB, error) {
	url, name := pg.Schema(url, schema)
	life, err := lifeOf(url)
	if err != nil {
		return nil, err
	}
	pool, err := pg.Open(ctx, url, name)
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(maxConns)
	files, err := fs.Sub(migrations, "migrations")
	if err == nil {
		err = pg.Migrate(ctx, pool, "nodes", files)
	}
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &DB{pool: pool, schema: name, life: life}, nil
}

// Close closes the connections.
func (db *DB) Close() error {
	if db == nil {
		return nil
	}
	return db.pool.Close()
}

// Entry returns the entry of a session; nil: it has none.
func (db *DB) Entry(ctx context.Context, id turnstone.SessionID) ([]byte, error) {
	var text []byte
	err := db.pool.QueryRowContext(ctx, "SELECT entry FROM owners WHERE session = $1", id).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return text, pg.Error("session.owner", string(id), err)
}

// ChangeEntry replaces the entry of a session by what f makes of it, which gets nil if there is none.
// Changes of a tenant's entries run one after another. With an error of f nothing changes.
func (db *DB) ChangeEntry(ctx context.Context, id turnstone.SessionID,
	f func(text []byte) ([]byte, error)) error {
	var refused error
	err := pg.Locked(ctx, db.pool, "owners "+db.schema, func(tx *sql.Tx) error {
		var text []byte
		err := tx.QueryRowContext(ctx, "SELECT entry FROM owners WHERE session = $1", id).Scan(&text)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if text, refused = f(text); refused != nil {
			return refused
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO owners (session, entry) VALUES ($1, $2)
			ON CONFLICT (session) DO UPDATE SET entry = excluded.entry, changed = clock_timestamp()`,
			id, text)
		return err
	})
	if refused != nil {
		return refused
	}
	return pg.Error("session.owner", string(id), err)
}

// RemoveEntry removes the entry of a session, if it has one.
func (db *DB) RemoveEntry(ctx context.Context, id turnstone.SessionID) error {
	_, err := db.pool.ExecContext(ctx, "DELETE FROM owners WHERE session = $1", id)
	return pg.Error("session.owner", string(id), err)
}

// Entries returns the sessions whose entries did not change for an age, by the database's clock.
func (db *DB) Entries(ctx context.Context, age time.Duration) ([]turnstone.SessionID, error) {
	rows, err := db.pool.QueryContext(ctx, `SELECT session FROM owners
		WHERE changed < clock_timestamp() - make_interval(secs => $1) ORDER BY session`, age.Seconds())
	if err != nil {
		return nil, pg.Error("session.owner", db.schema, err)
	}
	defer func() { _ = rows.Close() }()
	var all []turnstone.SessionID
	for rows.Next() {
		var id turnstone.SessionID
		if err := rows.Scan(&id); err != nil {
			return nil, pg.Error("session.owner", db.schema, err)
		}
		all = append(all, id)
	}
	return all, pg.Error("session.owner", db.schema, rows.Err())
}
