package session

import (
	"context"
	"database/sql"
	"fmt"

	"turnstone.dev/turnstone"
)

// A HeadSigner signs an entry of the log of heads, and returns its envelope and the digest of its
// payload.
type HeadSigner func(ctx context.Context, h turnstone.Head) ([]byte, turnstone.Digest, error)

// SignHeads sets what signs entries of the log of heads. Without it, changes of heads are not
// logged.
func (db *DB) SignHeads(sign HeadSigner) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.signHead = sign
}

// logHead adds the head that a branch has now to the log, or that the branch was removed.
func (db *DB) logHead(ctx context.Context, tx *txn, s turnstone.SessionID, name string) error {
	db.mu.Lock()
	sign := db.signHead
	db.mu.Unlock()
	if sign == nil {
		return nil
	}
	h := turnstone.Head{Session: s, Sequence: 1, Branch: name, Time: db.now().UTC()}
	last, err := heads(ctx, tx, "WHERE session = ? ORDER BY sequence DESC LIMIT 1", s)
	if err != nil {
		return err
	}
	if len(last) > 0 {
		h.Sequence, h.Previous = last[0].Sequence+1, last[0].Digest
	}
	now, err := branches(ctx, tx, "WHERE session = ? AND name = ?", s, name)
	if err != nil {
		return err
	}
	if len(now) > 0 && now[0].Head != "" {
		t, err := turn(ctx, tx, now[0].Head)
		if err != nil {
			return err
		}
		h.Turn, h.Statement = t.ID, t.Statement
	}
	envelope, digest, err := sign(ctx, h)
	if err != nil {
		return err
	}
	return insertHead(ctx, tx, LoggedHead{s, h.Sequence, digest, envelope})
}

// A LoggedHead is a stored entry of the log of heads.
type LoggedHead struct {
	Session  turnstone.SessionID
	Sequence int
	Digest   turnstone.Digest // of the payload
	Envelope []byte
}

func insertHead(ctx context.Context, tx *txn, h LoggedHead) error {
	_, err := tx.ExecContext(ctx,
		"INSERT INTO heads (session, sequence, digest, envelope) VALUES (?,?,?,?)", h.Session,
		h.Sequence, h.Digest, h.Envelope)
	return tx.fault("heads", string(h.Session), err)
}

func heads(ctx context.Context, q querier, clause string, args ...any) ([]LoggedHead, error) {
	return query(ctx, q, "heads", func(rows *sql.Rows) (h LoggedHead, err error) {
		return h, rows.Scan(&h.Session, &h.Sequence, &h.Digest, &h.Envelope)
	}, "SELECT session, sequence, digest, envelope FROM heads "+clause, args...)
}

// Heads returns the log of heads of a session, also of a session that was removed, oldest first.
func (db *DB) Heads(ctx context.Context, s turnstone.SessionID) ([]LoggedHead, error) {
	return heads(ctx, db.sql, "WHERE session = ? ORDER BY sequence", s)
}

// An ImportHistory has an imported log of heads. The log must begin with the log that is known here,
// unless Accept is true.
type ImportHistory struct {
	Heads []LoggedHead       // of the imported session, oldest first
	Needs []turnstone.Digest // those of Finish, for all turns together
	// Accept takes the imported log in place of the known one.
	Accept bool
}

// checkHistory reports a known entry that the imported log lacks or has in another form.
func checkHistory(ctx context.Context, q querier, s turnstone.SessionID, h ImportHistory) error {
	known, err := heads(ctx, q, "WHERE session = ? ORDER BY sequence", s)
	if err != nil || h.Accept {
		return err
	}
	for i, k := range known {
		switch {
		case i >= len(h.Heads):
			return rewritten(s, fmt.Sprintf("the file has an older state: its log of heads ends "+
				"with entry %d, and entry %d was seen here", len(h.Heads), len(known)))
		case h.Heads[i].Digest != k.Digest:
			return rewritten(s, fmt.Sprintf("its history forks away from what was seen here, at "+
				"entry %d of the log of heads", k.Sequence))
		}
	}
	return nil
}

func rewritten(s turnstone.SessionID, why string) error {
	return turnstone.Errorf("session.import", turnstone.KindIntegrity, string(s), "%s", why).
		WithHint("ask who exported it; --accept-history imports it all the same")
}

// importHeads replaces the known log by the imported one.
func importHeads(ctx context.Context, tx *txn, s turnstone.SessionID, h ImportHistory) error {
	if err := checkHistory(ctx, tx, s, h); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM heads WHERE session = ?", s); err != nil {
		return tx.fault("import", string(s), err)
	}
	for _, one := range h.Heads {
		if err := insertHead(ctx, tx, one); err != nil {
			return err
		}
	}
	return nil
}
