package turns

import (
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
)

// A late end is that of a turn whose journal or outcome the disk did not take, because it was full. It is
// told from memory until it is stored: whenever somebody asks for it, and at the service's end. After a
// crash the session has it.

// keepEnd stores the end of a turn, now or later.
func (s *Service) keepEnd(id string, r *running) {
	err := s.storeEnd(id, r)
	if err == nil {
		return
	}
	slog.Warn("the end of a turn is not stored yet", "ticket", id, "err", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late[id] = r
}

// storeEnd writes what the disk does not have of the end of a turn.
func (s *Service) storeEnd(id string, r *running) error {
	if err := r.journal.flush(); err != nil {
		return err
	}
	err := writeOutcome(filepath.Join(s.dir, id), r.outcome)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// lateEnd returns the turn of a ticket whose end is still not stored; nil: it is, as far as it is known.
func (s *Service) lateEnd(id string) *running {
	s.mu.Lock()
	r := s.late[id]
	s.mu.Unlock()
	if r == nil || s.storeEnd(id, r) != nil {
		return r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late[id] == r {
		delete(s.late, id)
		s.leave(id, r)
	}
	return nil
}

// lateEnds stores what is late.
func (s *Service) lateEnds() {
	s.mu.Lock()
	var all []string
	for id := range s.late {
		all = append(all, id)
	}
	s.mu.Unlock()
	for _, id := range all {
		s.lateEnd(id)
	}
}
