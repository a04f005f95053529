package session

import (
	"context"
	"iter"
	"slices"

	"turnstone.dev/turnstone"
)

// History yields a turn and all of its ancestors, each once, the highest number first: a turn
// precedes its parents, and after a merge both sides are ordered by their start. It reads on
// demand.
func (db *DB) History(ctx context.Context, from turnstone.Turn) iter.Seq2[turnstone.Turn, error] {
	return func(yield func(turnstone.Turn, error) bool) {
		next, seen := []turnstone.Turn{from}, map[turnstone.TurnID]bool{from.ID: true}
		for len(next) > 0 {
			t := next[len(next)-1]
			next = next[:len(next)-1]
			if !yield(t, nil) {
				return
			}
			for _, id := range t.Parents {
				if seen[id] {
					continue
				}
				seen[id] = true
				p, err := turn(ctx, db.sql, id)
				if p, err = db.openedOne(ctx, p, err); err != nil {
					yield(turnstone.Turn{}, err)
					return
				}
				next = pushTurn(next, p)
			}
		}
	}
}

// MergeBase returns the nearest common ancestor of two turns, which may be one of them; found is
// false if there is none. If several are equally near, such as after two branches were merged into
// each other, it returns the turn with the highest number: no other common ancestor follows it.
func (db *DB) MergeBase(ctx context.Context, a, b turnstone.Turn) (base turnstone.Turn, found bool,
	err error) {
	const ofA, ofB = 1, 2
	if a.ID == b.ID {
		return a, true, nil
	}
	if a.Session != b.Session {
		return turnstone.Turn{}, false, nil
	}
	next := pushTurn([]turnstone.Turn{a}, b)
	sides := map[turnstone.TurnID]int{a.ID: ofA, b.ID: ofB}
	// A turn's number is greater than its parents' numbers: all later turns have been visited
	// before it.
	for len(next) > 0 {
		t := next[len(next)-1]
		next = next[:len(next)-1]
		if sides[t.ID] == ofA|ofB {
			return t, true, nil
		}
		for _, id := range t.Parents {
			if sides[id] == 0 {
				p, err := turn(ctx, db.sql, id)
				if p, err = db.openedOne(ctx, p, err); err != nil {
					return turnstone.Turn{}, false, err
				}
				next = pushTurn(next, p)
			}
			sides[id] |= sides[t.ID]
		}
	}
	return turnstone.Turn{}, false, nil
}

// pushTurn adds t to turns, which are sorted by number; the highest comes last.
func pushTurn(turns []turnstone.Turn, t turnstone.Turn) []turnstone.Turn {
	at, _ := slices.BinarySearchFunc(turns, t,
		func(a, b turnstone.Turn) int { return a.Number - b.Number })
	return slices.Insert(turns, at, t)
}

// Graph returns a session with all of its turns.
func (db *DB) Graph(ctx context.Context, s turnstone.SessionID) (*turnstone.Graph, error) {
	g, _, err := db.GraphWithHeads(ctx, s)
	return g, err
}

// GraphWithHeads is Graph with the log of heads of the same moment, oldest entry first.
func (db *DB) GraphWithHeads(ctx context.Context, s turnstone.SessionID) (*turnstone.Graph,
	[]LoggedHead, error) {
	if err := db.reap(ctx); err != nil {
		return nil, nil, err
	}
	begun, err := db.sql.BeginTx(ctx, db.view()) // a consistent view of all tables
	if err != nil {
		return nil, nil, db.fault("graph", string(s), err)
	}
	defer func() { _ = begun.Rollback() }()
	tx := &txn{begun, db.dialect}
	g, err := db.graph(ctx, tx, s)
	if err != nil {
		return nil, nil, err
	}
	log, err := heads(ctx, tx, "WHERE session = ? ORDER BY sequence", s)
	_ = tx.Rollback() // what follows may wait for a key
	g.Turns, err = db.opened(ctx, g.Turns, err)
	return g, log, err
}

func (db *DB) graph(ctx context.Context, tx *txn, s turnstone.SessionID) (g *turnstone.Graph,
	err error) {
	g = &turnstone.Graph{}
	if g.Session, err = db.visible(ctx, tx, string(s)); err != nil {
		return nil, err
	}
	if g.Turns, err = turns(ctx, tx, "WHERE session = ? ORDER BY number DESC", s); err != nil {
		return nil, err
	}
	if g.Branches, err = branches(ctx, tx,
		"WHERE session = ? ORDER BY name <> 'main', name", s); err != nil {
		return nil, err
	}
	g.Tags, err = tags(ctx, tx, "WHERE session = ? ORDER BY name", s)
	return g, err
}
