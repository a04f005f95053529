package store

import "context"

// Exclusive calls f while no batch is open, in this process or another, and no Sweep
// is at work, and waits for that until ctx is done. f must not begin one. It is
// for changes to what alternates have, which a batch relies on.
func (s *Store) Exclusive(ctx context.Context, f func() error) error {
	l, err := s.exclusiveGC(ctx)
	if err != nil {
		return err
	}
	defer l.release()
	return f()
}
