package turns

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// privateLink is a link in a ticket's folder to a folder in memory, which has the journal and the
// files of a turn whose session is sealed.
const privateLink = "private"

// Private makes the service keep in a folder in memory what a ticket's client sends and its turn
// prints. secret returns the folder, or "" if all of it may be on the disk. ctx is one of the turn's
// limit. It is called before the first turn.
func (s *Service) Private(secret func(ctx context.Context, t Ticket) (string, error)) {
	s.secret = secret
}

// hide links the folder in memory of a ticket, if it has one.
func (s *Service) hide(ctx context.Context, t Ticket, dir string) error {
	if s.secret == nil {
		return nil
	}
	to, err := s.secret(ctx, t)
	if err != nil || to == "" {
		return err
	}
	if used(dir) {
		return nil // begin tells
	}
	link := filepath.Join(dir, privateLink)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(t.ID, err)
	}
	return failed(t.ID, os.Symlink(to, link))
}

// used reports whether the turn of a ticket's folder was started.
func used(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, begunFile))
	return err == nil
}

// within returns the folder for the journal and the files of a ticket.
func within(dir string) string {
	link := filepath.Join(dir, privateLink)
	if to, err := os.Readlink(link); err == nil {
		return to
	}
	return dir
}

func journalOf(dir string) string { return filepath.Join(within(dir), journalFile) }

// forgotten reports whether a ticket had a folder in memory that is gone.
func forgotten(dir string) bool {
	_, err := os.Stat(within(dir))
	return errors.Is(err, fs.ErrNotExist)
}

// remove removes the folder of a ticket.
func remove(dir string) error {
	var err error
	if to := within(dir); to != dir {
		err = os.RemoveAll(to)
	}
	return errors.Join(err, os.RemoveAll(dir))
}
