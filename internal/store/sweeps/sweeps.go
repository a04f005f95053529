// Package sweeps keeps the batches and sweeps of several machines apart with rows of their database:
// it is the guard.Shared of PostgreSQL. It also has the trees that machines need and no turn names.
package sweeps

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"io/fs"
	"math"
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
	alone   = "alone"  // who sweeps while no batch is open
)

// patience bounds the attempts of a transaction whose database is away.
const patience = 10 * time.Second

// Sweeps are the batches and sweeps of a schema. They are safe for concurrent use.
type Sweeps struct {
	pool   *sql.DB
	leases *lease.Rows
	poll   time.Duration // pause between two looks at what others do
	within time.Duration // how long batches wait for a sweep that waits for other batches

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
	return &Sweeps{pool: pool, leases: leases, poll: 100 * time.Millisecond,
		within: 2 * time.Second, open: map[*visit]bool{}}, nil
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

// Enter implements guard.Shared. It waits while a machine sweeps alone.
func (s *Sweeps) Enter(ctx context.Context) (guard.Visit, error) {
	for {
		var v *visit
		err := pg.Retry(ctx, patience, func() (err error) {
			v, err = s.enter(ctx)
			return err
		})
		if v != nil {
			return v, nil
		}
		for held := true; held && err == nil; {
			if err = s.pause(ctx); err == nil {
				_, held, err = s.leases.Holder(ctx, alone)
			}
		}
		if err != nil {
			return nil, pg.Error(op, "a batch", err)
		}
	}
}

// enter is Enter that returns nil if a machine sweeps alone. A sweep that condemns packs after the
// generation was read, and before the lease is taken, may wait for the batch although it need not: what
// News says after Enter is newer. Whoever wants to be alone has a lease before it looks for batches, and
// a batch has one before it looks for that, so one of them finds the other.
func (s *Sweeps) enter(ctx context.Context) (*visit, error) {
	var now int64
	if err := s.pool.QueryRowContext(ctx, "SELECT number FROM generation").Scan(&now); err != nil {
		return nil, err
	}
	l, err := s.leases.Take(ctx, batches+rand.Text(), strconv.FormatInt(now, 10))
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, turnstone.Errorf(op, turnstone.KindUnavailable, "the store", "is closed").
			WithHint("open the state directory again")
	}
	v := &visit{l, s}
	s.mu.Lock()
	s.open[v] = true
	s.mu.Unlock()
	// A lease that has expired is removed: its holder may be about to come back.
	held := false
	if err = s.leases.Forsake(ctx, alone); err == nil {
		_, held, err = s.leases.Holder(ctx, alone)
	}
	if held || err != nil {
		v.Release()
		return nil, err
	}
	return v, nil
}

// pause waits until others may have changed something.
func (s *Sweeps) pause(ctx context.Context) error {
	select {
	case <-time.After(s.poll):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
	err = f(ctx, &sweeping{s, l, nil})
	if cause := l.Cause(); cause != nil && err != nil {
		return cause
	}
	return err
}

// sweeping is a sweep of this process.
type sweeping struct {
	*Sweeps
	lease lease.Lease
	alone lease.Lease // nil: batches may be open
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
	if err == nil {
		err = x.waitFor(ctx, now)
	}
	return pg.Error(op, "open batches of other processes", err)
}

// waitFor waits for the end of the batches of generations before number.
func (x *sweeping) waitFor(ctx context.Context, number int64) error {
	for {
		left, err := x.leases.EndBefore(ctx, batches, number)
		if err != nil || left == 0 {
			return err
		}
		if err := x.pause(ctx); err != nil {
			return err
		}
	}
}

// Alone implements guard.Sweeping. If batches stay open, it lets others begin for a while: the owner of a
// batch may need another one before it ends the first.
func (x *sweeping) Alone(ctx context.Context, f func(context.Context) error) error {
	for {
		done, err := x.tryAlone(ctx, f)
		if done || err != nil {
			return err
		}
		for range 5 { // let waiting batches pass
			if err := x.pause(ctx); err != nil {
				return pg.Error(op, "open batches of other processes", err)
			}
		}
	}
}

// tryAlone is Alone that gives up when batches stay open.
func (x *sweeping) tryAlone(ctx context.Context, f func(context.Context) error) (done bool, err error) {
	l, err := x.leases.Wait(ctx, alone, "", nil)
	if err != nil {
		return false, err
	}
	defer l.Release()
	ctx, release := lease.Context(ctx, l)
	defer release()
	short, cancel := context.WithTimeout(ctx, x.within)
	err = x.waitFor(short, math.MaxInt64)
	gaveUp := short.Err() != nil && ctx.Err() == nil
	cancel()
	if gaveUp || err != nil {
		if gaveUp {
			err = nil
		}
		return false, pg.Error(op, "open batches of other processes", err)
	}
	x.alone = l
	defer func() { x.alone = nil }()
	return true, f(ctx)
}

// Removed implements guard.Sweeping.
func (x *sweeping) Removed(ctx context.Context, packs [][32]byte) error {
	if len(packs) == 0 {
		return nil
	}
	return x.write(ctx, func(tx *sql.Tx) error {
		if x.alone != nil {
			if err := x.alone.Check(ctx, tx); err != nil {
				return err
			}
		}
		var at int64
		err := tx.QueryRowContext(ctx,
			"UPDATE generation SET removals = removals + 1 RETURNING removals").Scan(&at)
		if err == nil {
			_, err = tx.ExecContext(ctx, "UPDATE condemned SET removed = $1 WHERE pack = ANY($2) "+
				"AND removed IS NULL", at, slicesOf(packs))
		}
		return err
	})
}
