package records

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/pg"
)

// A Lease is the right to lead, which one controller of a database in PostgreSQL has at a time. Its
// time is that of the database. Its methods are safe for concurrent use.
type Lease struct {
	pool *sql.DB
	url  string // for errors
}

// A Term is the time in which a controller leads.
type Term struct {
	Fence   int64 // greater than that of each earlier term
	Holder  string
	Address string        // of the holder, for other roles; may be empty
	Left    time.Duration // of the lease, when it was read
}

// OpenLease opens the lease of the database at a URL, and creates its tables.
func OpenLease(ctx context.Context, at string, o Options) (*Lease, error) {
	o.setDefaults()
	at, o.Schema = pg.Schema(at, o.Schema)
	p, err := connect(ctx, at, o)
	if err != nil {
		return nil, err
	}
	return &Lease{pool: p, url: pg.Name(at)}, nil
}

// Close closes the connections. It ends no term.
func (l *Lease) Close() error { return l.pool.Close() }

// Take begins a term for life unless one lasts, and returns the term and whether it is new. A new term
// begins after the last write of the earlier one. Its fence is at least the time in microseconds, so
// that a database that has lost its newest transactions, such as a standby that became the primary,
// gives no fence again: a term whose begin is lost would be as good as the next one.
func (l *Lease) Take(ctx context.Context, holder, address string, life time.Duration) (t Term,
	taken bool, err error) {
	t = Term{Holder: holder, Address: address, Left: life}
	err = l.pool.QueryRowContext(ctx, `UPDATE leader SET holder = $1, fence = greatest(fence + 1,
			CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)),
		address = $2, until = clock_timestamp() + $3 * interval '1 microsecond'
		WHERE name = 'controller' AND until <= clock_timestamp() RETURNING fence`, holder, address,
		life.Microseconds()).Scan(&t.Fence)
	if err == nil || !errors.Is(err, sql.ErrNoRows) {
		return t, err == nil, l.fail("lead", err)
	}
	var left int64
	err = l.pool.QueryRowContext(ctx, `SELECT fence, holder, address,
		CAST(extract(epoch FROM greatest(until, clock_timestamp()) - clock_timestamp()) * 1000000
			AS BIGINT)
		FROM leader WHERE name = 'controller'`).Scan(&t.Fence, &t.Holder, &t.Address, &left)
	t.Left = time.Duration(left) * time.Microsecond
	return t, false, l.fail("lead", err)
}

// Renew makes a term last for life from now on, and reports whether it is still the newest one.
func (l *Lease) Renew(ctx context.Context, fence int64, life time.Duration) (bool, error) {
	return l.update(ctx, `until = clock_timestamp() + $2 * interval '1 microsecond'`, fence,
		life.Microseconds())
}

// End ends a term, so that the next one can begin at once.
func (l *Lease) End(ctx context.Context, fence int64) error {
	_, err := l.update(ctx, "until = CAST($2 AS TIMESTAMPTZ)", fence, "-infinity")
	return err
}

// SetKey stores the thumbprint of the key that signs the tokens of a term.
func (l *Lease) SetKey(ctx context.Context, fence int64, key string) error {
	ok, err := l.update(ctx, "key = $2", fence, key)
	if err == nil && !ok {
		err = turnstone.Errorf("records.lead", turnstone.KindUnavailable, l.url,
			"has a newer leader than this controller").WithHint("ask the leader")
	}
	return err
}

// Key returns what SetKey stored last; empty: nothing.
func (l *Lease) Key(ctx context.Context) (key string, err error) {
	err = l.pool.QueryRowContext(ctx, "SELECT key FROM leader WHERE name = 'controller'").Scan(&key)
	return key, l.fail("lead", err)
}

// update changes the row of a term, and reports whether the term is the newest one.
func (l *Lease) update(ctx context.Context, set string, fence int64, value any) (bool, error) {
	done, err := l.pool.ExecContext(ctx, "UPDATE leader SET "+set+
		" WHERE name = 'controller' AND fence = $1", fence, value)
	if err != nil {
		return false, l.fail("lead", err)
	}
	n, err := done.RowsAffected()
	return n > 0, l.fail("lead", err)
}

func (l *Lease) fail(op string, err error) error {
	return pg.Error(turnstone.Op("records."+op), l.url, err)
}
