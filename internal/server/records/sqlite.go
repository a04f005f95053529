package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	_ "modernc.org/sqlite" // registers "sqlite" with database/sql

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/sqlitefault"
)

// schemaVersion is the number of the last file in migrations/sqlite.
const schemaVersion = 5

// sqlite is the dialect of a file.
type sqlite struct {
	path    string
	durable *sql.DB // commits are synced to the disk
	soft    *sql.DB // commits survive the process, and perhaps no loss of power
	readers *reader // nil: not open
}

// openSQLite opens the file at path, and creates it, private to its user, if it does not exist.
func openSQLite(ctx context.Context, path string) (*sqlite, error) {
	s := &sqlite{path: path}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, s.fail("open", err)
	}
	_ = f.Close() // SQLite gives its other files the mode of this file
	if s.durable, err = pool(path, 1, "synchronous(FULL)"); err == nil {
		if s.soft, err = pool(path, 1, "synchronous(NORMAL)"); err == nil {
			var p *sql.DB
			if p, err = pool(path, 4, "query_only(1)"); err == nil {
				s.readers = &reader{DB: p, text: s.text}
			}
		}
	}
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		return nil, errors.Join(s.fail("open", err), s.close())
	}
	return s, nil
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

// close implements dialect.
func (s *sqlite) close() error {
	var all []error
	if s.readers != nil {
		all = append(all, s.readers.Close())
	}
	for _, p := range []*sql.DB{s.soft, s.durable} {
		if p != nil {
			all = append(all, p.Close())
		}
	}
	return errors.Join(all...)
}

// migrate updates the schema to schemaVersion.
func (s *sqlite) migrate(ctx context.Context) error {
	var version int
	if err := s.durable.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > schemaVersion || version < 0 {
		return turnstone.Errorf("records.open", turnstone.KindUnavailable, s.path,
			"is of version %d, and this program supports versions up to %d",
			version, schemaVersion).
			WithHint("use the newer turn that created it, or another file")
	}
	if version == 0 {
		if _, err := s.durable.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
			return s.fail("migrate", err)
		}
	}
	tx, err := s.durable.BeginTx(ctx, nil)
	if err != nil {
		return s.fail("migrate", err)
	}
	if err := upgrade(ctx, tx); err != nil {
		_ = tx.Rollback()
		return s.fail("migrate", err)
	}
	return s.fail("migrate", tx.Commit())
}

// upgrade applies the migrations that are missing.
func upgrade(ctx context.Context, tx *sql.Tx) error {
	var version int // another process may have been faster
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	for ; version < schemaVersion; version++ {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/sqlite/%04d.sql", version+1))
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
}

// name implements dialect.
func (s *sqlite) name() string { return s.path }

// text implements dialect.
func (s *sqlite) text(statement string) string {
	return strings.NewReplacer("{max}", "max", "{min}", "min").Replace(statement)
}

// hasPrefix implements dialect.
func (s *sqlite) hasPrefix(column string) string {
	return "substr(CAST(" + column + " AS BLOB), 1, ?) = ?"
}

// hasLabel implements dialect.
func (s *sqlite) hasLabel(label string) (condition, name string) {
	return "json_extract(labels, ?) = ?", `$."` + label + `"`
}

// begin implements dialect. A file has one writer, and its pool waits for the lock.
func (s *sqlite) begin(ctx context.Context, soft bool) (*sql.Tx, error) {
	if soft {
		return s.soft.BeginTx(ctx, nil)
	}
	return s.durable.BeginTx(ctx, nil)
}

// reads implements dialect.
func (s *sqlite) reads() querier { return s.readers }

// secret implements dialect.
func (s *sqlite) secret() string { return "SELECT value FROM meta WHERE name = 'secret'" }

// check implements dialect.
func (s *sqlite) check(ctx context.Context) error {
	var text string
	err := s.readers.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&text)
	if err == nil && text != "ok" {
		return turnstone.Errorf("records.check", turnstone.KindIntegrity, s.path, "%s", text).
			WithHint(hintDamaged)
	}
	return err
}

// size implements dialect: that of the database and its log, as far as the files are there.
func (s *sqlite) size() (n int64) {
	for _, end := range []string{"", "-wal"} {
		if info, err := os.Stat(s.path + end); err == nil {
			n += info.Size()
		}
	}
	return n
}

const hintDamaged = "stop the server, then restore a copy of the file or recover it with " +
	"sqlite3; without it, nodes report their objects to a new one"

// fail implements dialect.
func (s *sqlite) fail(op string, err error) error {
	return sqlitefault.Error(turnstone.Op("records."+op), s.path, err, sqlitefault.Hints{
		Full: "free some space on the disk of the database", Damaged: hintDamaged,
		Access: "check the permissions and the disk of the database and its folder"})
}
