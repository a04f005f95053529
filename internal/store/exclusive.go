package store

import "context"

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
