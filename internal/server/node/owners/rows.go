package owners

import (
	"context"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"turnstone.dev/turnstone"
)

// Rows keep the entries of sessions that several nodes have: see shared.DB.
type Rows interface {
	Entry(ctx context.Context, id turnstone.SessionID) ([]byte, error)
	ChangeEntry(ctx context.Context, id turnstone.SessionID,
		f func(text []byte) ([]byte, error)) error
	RemoveEntry(ctx context.Context, id turnstone.SessionID) error
	Entries(ctx context.Context, age time.Duration) ([]turnstone.SessionID, error)
}

// Share keeps the entries of sessions in rows, which other nodes use too. It is called before the first
// use.
func (s *Store) Share(rows Rows) { s.rows = rows }

// inRows reports whether the entry of what stands for a session is a row.
func (s *Store) inRows(session turnstone.SessionID) bool {
	return s.rows != nil && !strings.HasPrefix(string(session), templateWord)
}

// soon is the context of a statement.
func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

// where is where an operator finds the entries.
const where = "the table owners of the tenant's schema"

// loadRow is load for a row.
func (s *Store) loadRow(session turnstone.SessionID) (*entry, error) {
	ctx, end := soon()
	defer end()
	text, err := s.rows.Entry(ctx, session)
	if err != nil {
		return nil, err
	}
	if text == nil {
		return nil, fs.ErrNotExist
	}
	return decodeOf(session, text, where)
}

// changeRow is change for a row.
func (s *Store) changeRow(ctx context.Context, session turnstone.SessionID,
	f func(e *entry, fresh bool) error) error {
	return s.rows.ChangeEntry(ctx, session, func(text []byte) (_ []byte, err error) {
		var e *entry
		if text != nil {
			if e, err = decodeOf(session, text, where); err != nil {
				return nil, err
			}
		}
		return s.changed(session, e, f)
	})
}

// sweepRows is Sweep for rows.
func (s *Store) sweepRows(exists func(turnstone.SessionID) error) error {
	ctx, end := soon()
	defer end()
	all, err := s.rows.Entries(ctx, time.Hour)
	if err != nil {
		return err
	}
	for _, id := range all {
		if turnstone.KindOf(exists(id)) != turnstone.KindNotFound {
			continue
		}
		if err := s.Forget(id); err != nil {
			slog.Warn("the owners of a removed session stay", "session", id, "err", err)
		}
	}
	return nil
}
