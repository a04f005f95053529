// Package locks has the locks of a store's directory (flock(2)): of batches, of sweeps, and of the index.
// The kernel releases the locks of a killed process.
package locks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
)

const op turnstone.Op = "store.lock"

const (
	gc = "gc.lock" // shared by batches, exclusive for a sweep
	// passed by batches, held by a waiting sweep, so that new batches do not starve it
	gate  = "gate.lock"
	index = "index.lock" // exclusive for changes of the index
)

// Locks takes the locks of the directory Dir.
type Locks struct{ Dir string }

// A Lock is a held lock.
type Lock struct{ f *os.File }

// Release releases the lock; nil is none.
func (l *Lock) Release() {
	if l != nil {
		_ = l.f.Close() // closing the only descriptor releases the lock
	}
}

// acquire takes a lock, shared or exclusive, waiting until ctx is done.
func (d Locks) acquire(ctx context.Context, name string, how int) (*Lock, error) {
	path := filepath.Join(d.Dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, turnstone.NewError(op, turnstone.KindUnavailable, path, err)
	}
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return &Lock{f: f}, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, turnstone.NewError(op, turnstone.KindUnavailable, path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			kind := turnstone.KindCanceled
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				kind = turnstone.KindTimeout
			}
			return nil, turnstone.NewError(op, kind, path, ctx.Err()).
				WithHint("another process uses this store: try again when it has ended")
		case <-time.After(wait):
		}
	}
}

// Index takes the lock for changes of the index.
func (d Locks) Index(ctx context.Context) (*Lock, error) {
	return d.acquire(ctx, index, syscall.LOCK_EX)
}

// Batch takes the lock of a batch.
func (d Locks) Batch(ctx context.Context) (*Lock, error) {
	g, err := d.acquire(ctx, gate, syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer g.Release()
	return d.acquire(ctx, gc, syscall.LOCK_SH)
}

// gateTime bounds how long a waiting sweep blocks new batches: the owner of a batch may need
// another batch before it ends the first.
const gateTime = 2 * time.Second

// Sweep takes the lock of a sweep.
func (d Locks) Sweep(ctx context.Context) (*Lock, error) {
	for {
		g, err := d.acquire(ctx, gate, syscall.LOCK_EX)
		if err != nil {
			return nil, err
		}
		short, cancel := context.WithTimeout(ctx, gateTime)
		l, err := d.acquire(short, gc, syscall.LOCK_EX)
		cancel()
		g.Release()
		if err == nil || ctx.Err() != nil || turnstone.KindOf(err) != turnstone.KindTimeout {
			return l, err
		}
		select { // let waiting batches pass the gate
		case <-ctx.Done():
		case <-time.After(gateTime / 10):
		}
	}
}
