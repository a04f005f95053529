package records

import (
	"context"
	"database/sql"
	"io/fs"
	"net/url"
	"strconv"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
)

// defaultSchema is where PostgreSQL has the tables, and part what they are to its migrations.
const (
	defaultSchema = "controller"
	part          = "records"
)

// IsURL reports whether a database is one of PostgreSQL, and not a file.
func IsURL(database string) bool {
	return strings.HasPrefix(database, "postgres://") || strings.HasPrefix(database, "postgresql://")
}

// postgres is the dialect of a server.
type postgres struct {
	pool   *sql.DB
	url    string // for errors
	schema string
	fence  int64  // 0: none
	silent string // how long the process of a transaction may be silent, in milliseconds
}

// openPostgres opens the database at a URL. Transactions of a fence that is not the newest one fail.
func openPostgres(ctx context.Context, o Options, at string) (*postgres, error) {
	at, o.Schema = pg.Schema(at, o.Schema)
	p, err := connect(ctx, at, o)
	if err != nil {
		return nil, err
	}
	return &postgres{pool: p, url: pg.Name(at), schema: o.Schema, fence: o.Fence,
		silent: strconv.FormatInt(o.Silent.Milliseconds(), 10)}, nil
}

// connect opens a pool, and brings the schema to its newest version.
func connect(ctx context.Context, at string, o Options) (*sql.DB, error) {
	if err := pg.CheckURL(at); err != nil {
		return nil, err
	}
	p, err := pg.Open(ctx, withPasswords(at, o.Passwords), o.Schema)
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(migrations, "migrations/postgres")
	if err == nil {
		err = pg.Migrate(ctx, p, part, files)
	}
	if err != nil {
		_ = p.Close()
		return nil, pg.Error("records.open", pg.Name(at), err)
	}
	return p, nil
}

// withPasswords returns a URL that names a file of passwords.
func withPasswords(at, file string) string {
	u, err := url.Parse(at)
	if err != nil || file == "" {
		return at
	}
	q := u.Query()
	q.Set("passfile", file)
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // pgx takes + for itself
	return u.String()
}

// close implements dialect.
func (p *postgres) close() error { return p.pool.Close() }

// name implements dialect.
func (p *postgres) name() string { return p.url }

// text implements dialect.
func (p *postgres) text(statement string) string { return inPostgres(statement) }

func inPostgres(statement string) string {
	return pg.Placeholders(strings.NewReplacer("{max}", "greatest", "{min}", "least").
		Replace(statement))
}

// hasPrefix implements dialect.
func (p *postgres) hasPrefix(column string) string {
	return "substr(convert_to(" + column + ", 'UTF8'), 1, ?) = ?"
}

// hasLabel implements dialect.
func (p *postgres) hasLabel(label string) (condition, name string) {
	return "CAST(labels AS jsonb) ->> ? = ?", label
}

// begin implements dialect. Of all processes one writes at a time, so that the order of commits is
// that of positions, and it holds the key of the leader's row: a new leader waits for its end, and
// from then on the fence is another.
func (p *postgres) begin(ctx context.Context, soft bool) (*sql.Tx, error) {
	tx, err := p.pool.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	commit := "on"
	if soft {
		commit = "off"
	}
	var fence int64
	err = tx.QueryRowContext(ctx, `SELECT fence,
		set_config('idle_in_transaction_session_timeout', $2, true),
		set_config('synchronous_commit', $1, true),
		CAST(pg_advisory_xact_lock(hashtextextended('turnstone records ' || current_schema(), 0)) AS text)
		FROM leader WHERE name = 'controller' FOR KEY SHARE`, commit, p.silent).
		Scan(&fence, new(string), new(string), new(string))
	if err == nil && p.fence != 0 && fence != p.fence {
		err = turnstone.Errorf("records.write", turnstone.KindUnavailable, p.url,
			"has a newer leader than this controller").WithHint("ask the leader")
	}
	if err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

// reads implements dialect.
func (p *postgres) reads() querier { return p }

// QueryContext implements querier.
func (p *postgres) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return p.pool.QueryContext(ctx, inPostgres(text), args...)
}

// secret implements dialect.
func (p *postgres) secret() string { return "SELECT value FROM secret" }

// check implements dialect: it reads each row. What the server has on its disk it checks itself.
func (p *postgres) check(ctx context.Context) error {
	for _, table := range []string{"tenants", "tokens", "revocations", "nodes", "keys", "objects",
		"usage"} {
		var n int64
		err := p.pool.QueryRowContext(ctx, "SELECT count(CAST(t AS text)) FROM "+table+" t").Scan(&n)
		if err != nil {
			return err
		}
	}
	return nil
}

// size implements dialect: that of all tables and their indexes.
func (p *postgres) size() (n int64) {
	ctx, end := context.WithTimeout(context.Background(), sizeTime)
	defer end()
	_ = p.pool.QueryRowContext(ctx, `SELECT CAST(COALESCE(sum(pg_total_relation_size(c.oid)), 0) AS BIGINT)
		FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = to_regnamespace($1)`, p.schema).
		Scan(&n) // 0: it is not known now
	return n
}

// fail implements dialect.
func (p *postgres) fail(op string, err error) error {
	return pg.Error(turnstone.Op("records."+op), p.url, err)
}
