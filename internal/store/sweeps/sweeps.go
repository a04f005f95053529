// Package sweeps keeps the batches and sweeps of several machines apart with rows of their database:
// it is the guard.Shared of PostgreSQL. It also has the trees that machines need and no turn names.
package sweeps

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"io/fs"
	"strconv"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/pg"
	"turnstone.dev/turnstone/internal/store/guard"
)

const op turnstone.Op = "store.sweeps"

//go:embed migrations/*.sql
var migrations embed.FS

// Names of leases.
const (
	batches = "batch/" // begins those of open batches, whose notes are their generations
	sweep   = "sweep"  // who sweeps
)

// patience bounds the attempts of a transaction whose database is away.
const patience = 10 * time.Second

// Sweeps are the batches and sweeps of a schema. They are safe for concurrent use.
type Sweeps struct {
	pool   *sql.DB
	leases *lease.Rows
	poll   time.Duration // pause of Wait between two looks

	mu   sync.Mutex
	open map[*visit]bool // the batches of this process
}

var _ guard.Shared = (*Sweeps)(nil)

// Open returns the sweeps in the schema of pool, whose leases leases are. Both stay the caller's.
func Open(ctx context.Context, pool *sql.DB, leases *lease.Rows) (*Sweeps, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	if err := pg.Migrate(ctx, pool, "sweeps", files); err != nil {
		return nil, err
	}
	return &Sweeps{pool: pool, leases: leases, poll: time.Second, open: map[*visit]bool{}}, nil
}

// A visit is an open batch of this process.
type visit struct {
	lease.Lease
	of *Sweeps
}

func (v *visit) Release() {
	v.of.mu.Lock()
	delete(v.of.open, v)
	v.of.mu.Unlock()
	v.Lease.Release()
}

// Enter implements guard.Shared. A sweep that condemns packs after the generation was read, and before
// the lease is taken, may wait for the batch although it need not: what News says after Enter is newer.
func (s *Sweeps) Enter(ctx context.Context) (guard.Visit, error) {
	var l lease.Lease
	err := pg.Retry(ctx, patience, func() (err error) {
		var now int64
		err = s.pool.QueryRowContext(ctx, "SELECT number FROM generation").Scan(&now)
		if err == nil {
			l, err = s.leases.Take(ctx, batches+rand.Text(), strconv.FormatInt(now, 10))
		}
		return err
	})
	if err != nil {
		return nil, pg.Error(op, "a batch", err)
	}
	if l == nil {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "the store", "is closed").
			WithHint("open the state directory again")
	}
	v := &visit{l, s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[v] = true
	return v, nil
}

// Check returns an error of kind Unavailable, in a transaction that announces objects, if a batch of
// this process that is open has ended for other machines: a sweep may have deleted what it found. To
// the transaction's end no sweep does.
func (s *Sweeps) Check(ctx context.Context, q lease.Querier) error {
	s.mu.Lock()
	var all []*visit
	for v := range s.open {
		all = append(all, v)
	}
	s.mu.Unlock()
	for _, v := range all {
		if err := v.Check(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// News implements guard.Shared.
func (s *Sweeps) News(ctx context.Context, after int64) (condemned, removed [][32]byte, now int64,
	err error) {
	now = after
	rows, err := s.pool.QueryContext(ctx,
		"SELECT pack, removed FROM condemned WHERE removed IS NULL OR removed > $1", after)
	if err != nil {
		return nil, nil, 0, pg.Error(op, "", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var pack []byte
		var at sql.NullInt64
		if err := rows.Scan(&pack, &at); err != nil || len(pack) != 32 {
			return nil, nil, 0, pg.Error(op, "", err)
		}
		if !at.Valid {
			condemned = append(condemned, [32]byte(pack))
			continue
		}
		removed = append(removed, [32]byte(pack))
		now = max(now, at.Int64)
	}
	return condemned, removed, now, pg.Error(op, "", rows.Err())
}

// Known implements guard.Shared.
func (s *Sweeps) Known(ctx context.Context, packs [][32]byte) (map[[32]byte]bool, error) {
	rows, err := s.pool.QueryContext(ctx,
		"SELECT pack, removed IS NOT NULL FROM condemned WHERE pack = ANY($1)", slicesOf(packs))
	if err != nil {
		return nil, pg.Error(op, "", err)
	}
	defer func() { _ = rows.Close() }()
	known := map[[32]byte]bool{}
	for rows.Next() {
		var pack []byte
		var removed bool
		if err := rows.Scan(&pack, &removed); err != nil {
			return nil, pg.Error(op, "", err)
		}
		known[[32]byte(pack)] = removed
	}
	return known, pg.Error(op, "", rows.Err())
}

func slicesOf(packs [][32]byte) [][]byte {
	all := make([][]byte, len(packs))
	for i := range packs {
		all[i] = packs[i][:]
	}
	return all
}

// Sweep implements guard.Shared. It waits for the sweep of another machine.
func (s *Sweeps) Sweep(ctx context.Context, f func(context.Context, guard.Sweeping) error) error {
	l, err := s.leases.Wait(ctx, sweep, "", nil)
	if err != nil {
		return err
	}
	defer l.Release()
	ctx, release := lease.Context(ctx, l)
	defer release()
	err = f(ctx, &sweeping{s, l})
	if cause := l.Cause(); cause != nil && err != nil {
		return cause
	}
	return err
}

// sweeping is a sweep of this process.
type sweeping struct {
	*Sweeps
	lease lease.Lease
}

// write runs f in a transaction that is refused if another machine sweeps.
func (x *sweeping) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	return pg.Error(op, "", pg.Retry(ctx, patience, func() error {
		tx, err := x.pool.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // after Commit it does nothing
		if err := x.lease.Check(ctx, tx); err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return err
		}
		return tx.Commit()
	}))
}

// Condemn implements guard.Sweeping.
func (x *sweeping) Condemn(ctx context.Context, packs [][32]byte) error {
	return x.write(ctx, func(tx *sql.Tx) error {
		var now int64
		err := tx.QueryRowContext(ctx,
			"UPDATE generation SET number = number + 1 RETURNING number").Scan(&now)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO condemned (pack, generation) "+
				"SELECT unnest($1::bytea[]), $2 ON CONFLICT DO NOTHING", slicesOf(packs), now)
		}
		return err
	})
}

// Wait implements guard.Sweeping. A batch whose machine does not renew its lease ends with the lease.
func (x *sweeping) Wait(ctx context.Context) error {
	var now int64
	err := x.pool.QueryRowContext(ctx, "SELECT number FROM generation").Scan(&now)
	for left := 1; err == nil; {
		if left, err = x.leases.EndBefore(ctx, batches, now); err != nil || left == 0 {
			break
		}
		select {
		case <-time.After(x.poll):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	return pg.Error(op, "open batches of other processes", err)
}

// Removed implements guard.Sweeping.
func (x *sweeping) Removed(ctx context.Context, packs [][32]byte) error {
	if len(packs) == 0 {
		return nil
	}
	return x.write(ctx, func(tx *sql.Tx) error {
		var at int64
		err := tx.QueryRowContext(ctx,
			"UPDATE generation SET removals = removals + 1 RETURNING removals").Scan(&at)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE condemned SET removed = $1 WHERE pack = ANY($2)", at,
				slicesOf(packs))
		}
		return err
	})
}
