// Package pg opens PostgreSQL for a part of the program: a pool whose connections see one schema,
// migrations, and what an error means for its user. What the schema holds is the caller's.
package pg

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lazyregexp"
)

// Limits of a pool, for each process. A server has 100 connections by default.
const (
	maxConns    = 8
	maxIdle     = 4
	maxIdleTime = 5 * time.Minute
	maxLife     = time.Hour // so that a proxy or a new primary takes over
)

// connectTimeout bounds a connection attempt, unless the URL has connect_timeout.
const connectTimeout = 10 * time.Second

// Open returns a pool of connections to the database at url, which see the schema. The schema is
// created if it does not exist. The URL is postgres://USER@HOST:PORT/DATABASE?…, without a password:
// that is in the file that PGPASSFILE or the URL's passfile names. Close closes the pool.
//
// A statement waits at most 20 s for a lock of another transaction, and the server ends a
// transaction whose program is silent for 30 s: a machine that has vanished holds no lock for longer. A
// server that is silent for two minutes counts as one that has ended the connection.
func Open(ctx context.Context, url, schema string) (*sql.DB, error) {
	cfg, err := parse(url, schema)
	if err != nil {
		return nil, err
	}
	pool := stdlib.OpenDB(*cfg)
	pool.SetMaxOpenConns(maxConns)
	pool.SetMaxIdleConns(maxIdle)
	pool.SetConnMaxIdleTime(maxIdleTime)
	pool.SetConnMaxLifetime(maxLife)
	err = Retry(ctx, connectTimeout, func() error { return createSchema(ctx, pool, schema) })
	if err != nil {
		_ = pool.Close()
		return nil, Error("pg.open", Name(url), err)
	}
	return pool, nil
}

var schemaName = lazyregexp.New(`^[a-z_][a-z0-9_]{0,62}$`)

func parse(url, schema string) (*pgx.ConnConfig, error) {
	if err := CheckURL(url); err != nil {
		return nil, err
	}
	if !schemaName.MatchString(schema) {
		return nil, turnstone.Errorf("pg.open", turnstone.KindInvalid, fmt.Sprintf("schema %.80q", schema),
			"is not the name of a schema").
			WithHint("use lower-case letters, digits and underscores, at most 63 characters")
	}
	cfg, err := pgx.ParseConfig(withoutLease(url))
	if err != nil {
		// the parser's error may quote a password that it took from a file
		return nil, turnstone.Errorf("pg.open", turnstone.KindInvalid, Name(url),
			"is not the URL of a database, or a file that it names cannot be read").
			WithHint("write postgres://USER@HOST:PORT/DATABASE, and the password in the file that " +
				"PGPASSFILE names")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	cfg.DialFunc = bounded(cfg.DialFunc, stallTime)
	for name, value := range map[string]string{
		"search_path":                         schema,
		"application_name":                    "turn",
		"lock_timeout":                        "20s",
		"idle_in_transaction_session_timeout": "30s",
		"client_encoding":                     "UTF8",
	} {
		cfg.RuntimeParams[name] = value
	}
	return cfg, nil
}

// createSchema creates the schema if it does not exist. A user who may not create schemas can use one
// that exists.
func createSchema(ctx context.Context, pool *sql.DB, schema string) error {
	var exists bool
	const find = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)"
	if err := pool.QueryRowContext(ctx, find, schema).Scan(&exists); err != nil || exists {
		return err
	}
	return Locked(ctx, pool, "schema "+schema, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS "`+schema+`"`)
		return err
	})
}

// Locked runs f in a transaction that has an advisory lock: of all transactions of the database that
// name it, one at a time runs. The lock ends with the transaction.
func Locked(ctx context.Context, pool *sql.DB, name string, f func(tx *sql.Tx) error) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if err := Lock(ctx, tx, name); err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Lock waits for the advisory lock of this name, which the transaction then holds to its end.
func Lock(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := LockAt(ctx, tx, name)
	return err
}

// LockAt is Lock, and returns the database's time after the wait.
func LockAt(ctx context.Context, tx *sql.Tx, name string) (now time.Time, err error) {
	err = tx.QueryRowContext(ctx, "SELECT clock_timestamp() FROM "+
		"pg_advisory_xact_lock(hashtextextended($1, 0))", "turnstone "+name).Scan(&now)
	return now, err
}
