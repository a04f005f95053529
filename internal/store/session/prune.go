package session

import (
	"context"
	"database/sql"
	"time"

	"turnstone.dev/turnstone"
)

// A Rule says what is old enough to go. Both ages count from when a turn ended.
type Rule struct {
	Now         time.Time     // zero: the time it is
	Anonymous   time.Duration // sessions without a name and without a tag, by their newest turn
	Unreachable time.Duration // turns that no branch, no tag and no running turn has behind it
}

// Expired is what a Rule lets go.
type Expired struct {
	Sessions []Session `json:"sessions"`
	Turns    []Turn    `json:"turns"` // those of Sessions too
}

// Expired returns what Prune would forget by now.
func (db *DB) Expired(ctx context.Context, rule Rule) (Expired, error) {
	if err := db.reap(ctx); err != nil {
		return Expired{}, err
	}
	return db.expired(ctx, db.sql, rule)
}

// Prune forgets what rule lets go: anonymous sessions, and turns that nothing leads
// to. Of a turn that stays, all ancestors stay.
func (db *DB) Prune(ctx context.Context, rule Rule) (Expired, error) {
	if err := db.reap(ctx); err != nil {
		return Expired{}, err
	}
	var gone Expired
	return gone, db.write(ctx, func(tx *sql.Tx) (err error) {
		if gone, err = db.expired(ctx, tx, rule); err != nil {
			return err
		}
		for _, t := range gone.Turns {
			if _, err := tx.ExecContext(ctx, "DELETE FROM turns WHERE id = ?", t.ID); err != nil {
				return dbError("prune", string(t.ID), err)
			}
		}
		for _, s := range gone.Sessions {
			if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE id = ?", s.ID); err != nil {
				return dbError("prune", string(s.ID), err)
			}
		}
		return nil
	})
}

func (db *DB) expired(ctx context.Context, q querier, rule Rule) (Expired, error) {
	gone := Expired{Sessions: []Session{}, Turns: []Turn{}}
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

// allOlder tells whether nothing of s is younger than rule has it, or running.
func allOlder(s Session, ts []Turn, rule Rule) bool {
	newest := s.Created
	for _, t := range ts {
		if t.Status == StatusRunning {
			return false
		}
		if t.Ended.After(newest) {
			newest = t.Ended
		}
	}
	return rule.Now.Sub(newest) > rule.Anonymous
}

// unreached returns those of ts, which come with the highest number first, that
// are older than rule has it and lie behind no root, no running and no younger turn. It
// adds to roots what it finds reached.
func unreached(ts []Turn, roots map[turnstone.TurnID]bool, rule Rule) []Turn {
	var gone []Turn
	for _, t := range ts {
		if !roots[t.ID] && t.Status == StatusDone && rule.Now.Sub(t.Ended) > rule.Unreachable {
			gone = append(gone, t)
			continue
		}
		for _, p := range t.Parents {
			roots[p] = true
		}
	}
	return gone
}

// Every returns all turns of all sessions, by session and number.
func (db *DB) Every(ctx context.Context) ([]Turn, error) {
	if err := db.reap(ctx); err != nil {
		return nil, err
	}
	return turns(ctx, db.sql, "ORDER BY session, number")
}
