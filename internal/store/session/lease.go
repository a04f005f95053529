package session

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// A lease is a lock (flock) on a file with the turn's name. The kernel releases it when the process
// that runs the turn ends for any reason. A turn that is stored as running and whose lease is free
// was therefore interrupted.

func (db *DB) leasePath(id turnstone.TurnID) string { return filepath.Join(db.leases, string(id)) }

// lease takes the lease of a turn that is about to start.
func (db *DB) lease(id turnstone.TurnID) error {
	if !validTurnID(id) {
		return turnstone.Errorf("session.start", turnstone.KindInvalid, fmt.Sprintf("%q", id),
			"is not a turn's ID")
	}
	if err := os.MkdirAll(db.leases, 0o700); err != nil {
		return dbError("lease", db.leases, err)
	}
	l, err := statedir.TryAcquire(db.leasePath(id))
	if err != nil {
		return dbError("lease", string(id), err)
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
	defer db.mu.Unlock()
	if l := db.held[id]; l != nil {
		// while the lease is held, so that no other process's file is removed
		_ = os.Remove(db.leasePath(id))
		l.Release()
		delete(db.held, id)
	}
}

// reap finishes turns that dead processes left running.
func (db *DB) reap(ctx context.Context) error {
	running, err := turns(ctx, db.sql, "WHERE status = 'running'")
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
	// the folder may be missing, and the turns with it
	if err := os.MkdirAll(db.leases, 0o700); err != nil {
		return dbError("lease", db.leases, err)
	}
	l, err := statedir.TryAcquire(db.leasePath(id))
	if err != nil {
		return dbError("lease", string(id), err)
	}
	if l == nil {
		return nil
	}
	defer l.Release()
	err = db.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx,
			"UPDATE turns SET status = 'done', result = ?, ended = ? WHERE id = ? AND status = "+
				"'running'",
			turnstone.ResultError, unixNano(db.now()), id)
		return dbError("reap", string(id), err)
	})
	_ = os.Remove(db.leasePath(id))
	return err
}

// Forsake removes the lease of a turn that does not run, if a process that was killed has left it:
// between taking it and storing the turn, or between storing the turn's end and releasing it.
func (db *DB) Forsake(id turnstone.TurnID) error {
	if !validTurnID(id) {
		return nil
	}
	if _, err := os.Stat(db.leasePath(id)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	l, err := statedir.TryAcquire(db.leasePath(id))
	if err != nil {
		return dbError("lease", string(id), err)
	}
	if l == nil { // it runs
		return nil
	}
	defer l.Release()
	err = os.Remove(db.leasePath(id))
	return dbError("lease", string(id), err)
}

// SweepLeases removes the files of free leases and returns their number. A crash between taking a
// lease and storing the turn leaves such a file.
func (db *DB) SweepLeases(ctx context.Context) (int, error) {
	if err := db.reap(ctx); err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(db.leases)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, dbError("lease", db.leases, err)
	}
	n := 0
	for _, e := range entries {
		if !validTurnID(turnstone.TurnID(e.Name())) {
			continue
		}
		l, err := statedir.TryAcquire(db.leasePath(turnstone.TurnID(e.Name())))
		if err != nil || l == nil {
			continue
		}
		// Its turn may have been started since reap, by a process that died at once: it is found
		// without its file too.
		if os.Remove(db.leasePath(turnstone.TurnID(e.Name()))) == nil {
			n++
		}
		l.Release()
	}
	return n, nil
}
