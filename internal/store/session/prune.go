package session

import (
	"context"
	"time"

	"turnstone.dev/turnstone"
)

// A Rule defines which sessions and turns expire. Both ages count from the end of a turn.
type Rule struct {
	Now         time.Time     // zero: the current time
	Anonymous   time.Duration // sessions without a name and without a tag, by their newest turn
	Unreachable time.Duration // turns that no branch, no tag and no running turn reaches
}

// Expired is what a Rule expires.
type Expired struct {
	Sessions []turnstone.Session `json:"sessions"`
	Turns    []turnstone.Turn    `json:"turns"` // includes the turns of Sessions
}

// Expired returns what Prune would delete now.
func (db *DB) Expired(ctx context.Context, rule Rule) (Expired, error) {
	if err := db.reap(ctx); err != nil {
		return Expired{}, err
	}
	gone, err := db.expired(ctx, db.sql, rule)
	gone.Turns = closed(gone.Turns)
	return gone, err
}

// Prune deletes what rule expires: anonymous sessions and unreachable turns. All ancestors of a
// remaining turn remain.
func (db *DB) Prune(ctx context.Context, rule Rule) (Expired, error) {
	if err := db.reap(ctx); err != nil {
		return Expired{}, err
	}
	var gone Expired
	err := db.write(ctx, func(tx *txn) (err error) {
		if gone, err = db.expired(ctx, tx, rule); err != nil {
			return err
		}
		for _, t := range gone.Turns {
			if _, err := tx.ExecContext(ctx, "DELETE FROM turns WHERE id = ?", t.ID); err != nil {
				return db.fault("prune", string(t.ID), err)
			}
		}
		for _, s := range gone.Sessions {
			// Nobody named it, so nobody compares another history of it.
			if _, err := tx.ExecContext(ctx, "DELETE FROM heads WHERE session = ?",
				s.ID); err != nil {
				return db.fault("prune", string(s.ID), err)
			}
			if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE id = ?",
				s.ID); err != nil {
				return db.fault("prune", string(s.ID), err)
			}
		}
		return nil
	})
	gone.Turns = closed(gone.Turns)
	return gone, err
}

func (db *DB) expired(ctx context.Context, q querier, rule Rule) (Expired, error) {
	gone := Expired{Sessions: []turnstone.Session{}, Turns: []turnstone.Turn{}}
	if rule.Now.IsZero() {
		rule.Now = db.now()
	}
	all, err := sessions(ctx, q, "ORDER BY created, id")
	if err != nil {
		return gone, err
	}
	for _, s := range all {
		ts, err := turns(ctx, q, "WHERE session = ? ORDER BY number DESC", s.ID)
		if err != nil {
			return gone, err
		}
		roots := map[turnstone.TurnID]bool{}
		tagged, err := tags(ctx, q, "WHERE session = ?", s.ID)
		if err != nil {
			return gone, err
		}
		if s.Name == "" && len(tagged) == 0 {
			if allOlder(s, ts, rule) {
				gone.Sessions, gone.Turns = append(gone.Sessions, s), append(gone.Turns, ts...)
			}
			continue
		}
		for _, t := range tagged {
			roots[t.Turn] = true
		}
		heads, err := branches(ctx, q, "WHERE session = ?", s.ID)
		if err != nil {
			return gone, err
		}
		for _, b := range heads {
			roots[b.Head] = true
		}
		gone.Turns = append(gone.Turns, unreached(ts, roots, rule)...)
	}
	return gone, nil
}

// allOlder reports whether all turns of s are done and older than rule's age.
func allOlder(s turnstone.Session, ts []turnstone.Turn, rule Rule) bool {
	newest := s.Created
	for _, t := range ts {
		if t.Status == turnstone.TurnRunning {
			return false
		}
		if t.Ended.After(newest) {
			newest = t.Ended
		}
	}
	return rule.Now.Sub(newest) > rule.Anonymous
}

// unreached returns those of ts, sorted by number, highest first, that are older than rule's age
// and that no root, no running turn and no younger turn reaches. It adds the reached turns to
// roots.
func unreached(ts []turnstone.Turn, roots map[turnstone.TurnID]bool, rule Rule) []turnstone.Turn {
	var gone []turnstone.Turn
	for _, t := range ts {
		if !roots[t.ID] && t.Status == turnstone.TurnDone &&
			rule.Now.Sub(t.Ended) > rule.Unreachable {
			gone = append(gone, t)
			continue
		}
		for _, p := range t.Parents {
			roots[p] = true
		}
	}
	return gone
}

// Every returns all turns of all sessions, by session and number. Sealed ones are locked: nobody
// needs a key to delete what they do not need.
func (db *DB) Every(ctx context.Context) ([]turnstone.Turn, error) {
	if err := db.reap(ctx); err != nil {
		return nil, err
	}
	all, err := turns(ctx, db.sql, "ORDER BY session, number")
	return closed(all), err
}
