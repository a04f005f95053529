package lease

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/statedir"
)

// Files are leases that are locks (flock) on files with the leases' names in the folder Dir. The
// kernel releases them when their process ends for any reason, so they are not lost before that.
type Files struct{ Dir string }

// Take implements Leases. A file has no note.
func (f Files) Take(_ context.Context, name, _ string) (Lease, error) {
	// the folder may be missing
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return nil, f.fault(f.Dir, err)
	}
	l, err := statedir.TryAcquire(f.path(name))
	if err != nil {
		return nil, f.fault(name, err)
	}
	if l == nil {
		return nil, nil
	}
	return &file{f.path(name), l}, nil
}

func (f Files) path(name string) string { return filepath.Join(f.Dir, name) }

func (f Files) fault(subject string, err error) error {
	e := turnstone.NewError(op, turnstone.KindUnavailable, subject, err).
		WithHint("check the permissions and the disk of the state directory")
	if turnstone.IsFull(err) {
		e.Kind, e.Hint = turnstone.KindExhausted, "free some disk space, such as with turn gc"
	}
	return e
}

// Forsake implements Leases.
func (f Files) Forsake(_ context.Context, name string) error {
	if _, err := os.Stat(f.path(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := statedir.TryAcquire(f.path(name))
	if err != nil {
		return f.fault(name, err)
	}
	if l == nil { // it is held
		return nil
	}
	defer l.Release()
	if err := os.Remove(f.path(name)); err != nil {
		return f.fault(name, err)
	}
	return nil
}

// Sweep implements Leases.
func (f Files) Sweep(_ context.Context, is func(name string) bool) (int, error) {
	entries, err := os.ReadDir(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, f.fault(f.Dir, err)
	}
	n := 0
	for _, e := range entries {
		if !is(e.Name()) {
			continue
		}
		l, err := statedir.TryAcquire(f.path(e.Name()))
		if err != nil || l == nil {
			continue
		}
		if os.Remove(f.path(e.Name())) == nil {
			n++
		}
		l.Release()
	}
	return n, nil
}

// Locked returns the lease that l is, of a file that stays.
func Locked(l *statedir.Lock) Lease { return &file{"", l} }

type file struct {
	path string // empty: it stays
	lock *statedir.Lock
}

func (*file) Check(context.Context, Querier) error { return nil }

func (*file) Lost() <-chan struct{} { return nil }

func (*file) Cause() error { return nil }

func (l *file) Release() {
	if l.path != "" { // while the lease is held, so that no other process's file is removed
		_ = os.Remove(l.path)
	}
	l.lock.Release()
}
