package session

import (
	"context"
	"database/sql"

	"turnstone.dev/turnstone"
)

// Landing says what Finish would answer for the running turn id now: the branch
// that would end with it, and whether that is a new one. Whoever wants the answer
// to stay true keeps others from finishing turns of the session meanwhile.
func (db *DB) Landing(ctx context.Context, id turnstone.TurnID, expected *turnstone.TurnID) (onBranch string, diverged bool, err error) {
	t, err := turn(ctx, db.sql, id)
	if err != nil {
		return "", false, err
	}
	want := turnstone.TurnID("")
	if expected != nil {
		want = *expected
	}
	b, err := branch(ctx, db.sql, t.Session, t.Branch)
	if err == nil && b.Head == want {
		return t.Branch, false, nil
	}
	if err != nil && turnstone.KindOf(err) != turnstone.NotFound {
		return "", false, err
	}
	name, err := freeName(ctx, db.sql, t.Session, t.Branch, t.Number)
	return name, true, err
}

// Abandon forgets a turn that Start has kept and that did not begin; an anonymous
// session that has no other goes with it. The number is not used again.
func (db *DB) Abandon(ctx context.Context, id turnstone.TurnID) error {
	defer db.release(id)
	return db.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM turns WHERE id = ? AND status = 'running'", id); err != nil {
			return dbError("abandon", string(id), err)
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE name IS NULL AND id NOT IN (SELECT session FROM turns)")
		return dbError("abandon", string(id), err)
	})
}
