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

// The locks of a store's directory (flock(2)). The kernel releases the locks of a killed process.
const (
	lockGC = "gc.lock" // shared by batches, exclusive for Sweep
	// passed by batches, held by a waiting Sweep, so that new batches do not starve it
	lockGate  = "gate.lock"
	lockIndex = "index.lock" // exclusive for changes of the index
)

// A lock is a held lock.
type lock struct{ f *os.File }

// acquire takes a lock, shared or exclusive, waiting until ctx is done.
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
			e.Hint = "another process uses this store: try again when it has ended"
			return nil, e
		case <-time.After(wait):
		}
	}
}

func (l *lock) release() {
	if l != nil {
		_ = l.f.Close() // closing the only descriptor releases the lock
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

// gateTime bounds how long a waiting Sweep blocks new batches: the owner of a batch may need
// another batch before it ends the first.
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
		select { // let waiting batches pass the gate
		case <-ctx.Done():
		case <-time.After(gateTime / 10):
		}
	}
}

// Exclusive calls f while no batch is open, in any process, and no Sweep runs; it waits for that
// until ctx is done. f must not begin a batch. Exclusive is for changes of alternates' contents,
// which a batch relies on.
func (s *Store) Exclusive(ctx context.Context, f func() error) error {
	l, err := s.exclusiveGC(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	return f()
}
