package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/lease"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/store/sweeps"
)

// A turn's lease has the turn's ID as its name. A turn that is stored as running and whose lease is
// free was interrupted.

// lease takes the lease of a turn that is about to start.
func (db *DB) lease(ctx context.Context, id turnstone.TurnID) error {
	if !validTurnID(id) {
		return turnstone.Errorf("session.start", turnstone.KindInvalid, fmt.Sprintf("%q", id),
			"is not a turn's ID")
	}
	l, err := db.leases.Take(ctx, string(id), "")
	if err != nil {
		return err
	}
	if l == nil {
		return turnstone.Errorf("session.start", turnstone.KindInvalid, string(id),
			"is already running")
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.held[id] = l
	return nil
}

// release releases a lease that this process holds.
func (db *DB) release(id turnstone.TurnID) {
	db.mu.Lock()
	l := db.held[id]
	delete(db.held, id)
	db.mu.Unlock()
	if l != nil {
		l.Release()
	}
}

func (db *DB) heldLease(id turnstone.TurnID) lease.Lease {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.held[id]
}

// permitted returns an error of kind Unavailable, in the transaction that stores what a turn did,
// if the turn's lease has another holder.
func (db *DB) permitted(ctx context.Context, tx *txn, id turnstone.TurnID) error {
	l := db.heldLease(id)
	if l == nil && db.Shared() {
		return turnstone.Errorf("session.lease", turnstone.KindUnavailable, string(id),
			"this process does not run it").WithHint("see its result with turn show " + string(id))
	}
	if l == nil {
		return nil
	}
	return tx.fault("lease", string(id), l.Check(ctx, tx))
}

// announces returns an error of kind Unavailable, in the transaction that first names objects of a batch,
// if a sweep of another machine does not wait for the batches of this process any longer.
func (db *DB) announces(ctx context.Context, tx *txn) error {
	if db.sweeps == nil {
		return nil
	}
	return tx.fault("announce", db.name, db.sweeps.Check(ctx, tx.Tx))
}

// Sweeps returns what keeps the batches and sweeps of all machines apart; nil: this database is on one
// machine.
func (db *DB) Sweeps() *sweeps.Sweeps { return db.sweeps }

// Pin keeps a tree that a machine needs, and that the batches that are open have found, from deletion by
// all machines.
func (db *DB) Pin(ctx context.Context, machine string, tree turnstone.TreeRef) error {
	return db.write(ctx, func(tx *txn) error {
		err := db.announces(ctx, tx)
		if err == nil {
			err = db.sweeps.Pin(ctx, tx.Tx, machine, tree)
		}
		return tx.fault("pin", string(tree.Root), err)
	})
}

// Pins returns the trees that machines have pinned; none on one machine.
func (db *DB) Pins(ctx context.Context) ([]turnstone.TreeRef, error) {
	if db.sweeps == nil {
		return nil, nil
	}
	return db.sweeps.Pins(ctx)
}

// Running returns a context for the work of a turn that this process has started: it is canceled, with
// the reason as its cause, before another machine may count the turn as interrupted. The function
// releases the context.
func (db *DB) Running(ctx context.Context, id turnstone.TurnID) (context.Context,
	context.CancelFunc) {
	return lease.Context(ctx, db.heldLease(id))
}

// Rows returns the leases that other machines see too; nil: this database is on one machine.
func (db *DB) Rows() *lease.Rows { return db.rows }

// LockHeads waits until no other turn is about to move a branch of the session: see Landing. unlock
// ends that. folder is where this machine's locks are.
func (db *DB) LockHeads(ctx context.Context, folder string, s turnstone.SessionID) (unlock func(),
	err error) {
	name := string(s) + ".head"
	if db.rows == nil {
		path := filepath.Join(folder, name)
		lock, err := statedir.Acquire(ctx, path, nil)
		if err != nil {
			return nil, err
		}
		return func() {
			_ = os.Remove(path) // removed while it is locked; otherwise each session would leave a file
			lock.Release()
		}, nil
	}
	l, err := db.rows.Wait(ctx, name, "", nil)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

// reap finishes turns that dead processes left running.
func (db *DB) reap(ctx context.Context) error {
	running, err := turns(ctx, db.sql, "WHERE "+db.running())
	if err != nil {
		return err
	}
	for _, t := range running {
		if err := db.reapOne(ctx, t.ID); err != nil {
			return err
		}
	}
	return nil
}

// reapOne finishes a turn if it is running and its lease is free.
func (db *DB) reapOne(ctx context.Context, id turnstone.TurnID) error {
	l, err := db.leases.Take(ctx, string(id), "")
	if err != nil || l == nil {
		return err
	}
	defer l.Release()
	return db.write(ctx, func(tx *txn) error {
		if err := l.Check(ctx, tx); err != nil {
			return db.fault("reap", string(id), err)
		}
		_, err := tx.ExecContext(ctx,
			"UPDATE turns SET status = 'done', result = ?, ended = ? WHERE id = ? AND status = "+
				"'running'",
			turnstone.ResultError, unixNano(db.now()), id)
		return db.fault("reap", string(id), err)
	})
}

// Forsake removes the lease of a turn that does not run, if a process that was killed has left it:
// between taking it and storing the turn, or between storing the turn's end and releasing it.
func (db *DB) Forsake(ctx context.Context, id turnstone.TurnID) error {
	if !validTurnID(id) {
		return nil
	}
	return db.leases.Forsake(ctx, string(id))
}

// SweepLeases removes free leases and returns their number. A crash between taking a lease and storing
// the turn leaves such a lease. Its turn may have been started meanwhile, by a process that died at
// once: it is found without its lease too.
func (db *DB) SweepLeases(ctx context.Context) (int, error) {
	if err := db.reap(ctx); err != nil {
		return 0, err
	}
	return db.leases.Sweep(ctx, func(name string) bool {
		return validTurnID(turnstone.TurnID(name))
	})
}

// pauseForLater is how long Finish waits before another attempt.
const pauseForLater = 20 * time.Millisecond
