package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"turnstone.dev/turnstone"
)

// The locks of a store's directory, taken with flock(2). A killed process holds none.
const (
	lockGC    = "gc.lock"    // shared by batches, exclusive for Sweep
	lockGate  = "gate.lock"  // passed through by batches, held by a Sweep that waits, so that it is not passed by for ever
	lockIndex = "index.lock" // exclusive for whoever changes the index
)

// A lock is a lock that is held.
type lock struct{ f *os.File }

// acquire takes a lock, shared or exclusive, waiting for it until ctx is done.
func acquire(ctx context.Context, dir, name string, how int) (*lock, error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fail("store.lock", path, err)
	}
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			return &lock{f: f}, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = f.Close()
			return nil, fail("store.lock", path, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			e := fail("store.lock", path, ctx.Err()).(*turnstone.Error)
			e.Hint = "another process is at work on this store: try again when it has ended"
			return nil, e
		case <-time.After(wait):
		}
	}
}

func (l *lock) release() {
	if l != nil {
		_ = l.f.Close() // closing the only descriptor lifts the lock
	}
}

// sharedGC takes the lock of a batch.
func (s *Store) sharedGC(ctx context.Context) (*lock, error) {
	gate, err := acquire(ctx, s.dir, lockGate, syscall.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer gate.release()
	return acquire(ctx, s.dir, lockGC, syscall.LOCK_SH)
}

// gateTime is how long a waiting Sweep keeps new batches out. It is bounded: who
// has a batch may need another before it ends the first.
const gateTime = 2 * time.Second

// exclusiveGC takes the lock of Sweep.
func (s *Store) exclusiveGC(ctx context.Context) (*lock, error) {
	for {
		gate, err := acquire(ctx, s.dir, lockGate, syscall.LOCK_EX)
		if err != nil {
			return nil, err
		}
		short, cancel := context.WithTimeout(ctx, gateTime)
		l, err := acquire(short, s.dir, lockGC, syscall.LOCK_EX)
		cancel()
		gate.release()
		if err == nil || ctx.Err() != nil || turnstone.KindOf(err) != turnstone.KindTimeout {
			return l, err
		}
		select { // let those in who wait at the gate
		case <-ctx.Done():
		case <-time.After(gateTime / 10):
		}
	}
}
