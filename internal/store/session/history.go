package session

import (
	"container/heap"
	"context"
	"iter"

	"turnstone.dev/turnstone"
)

// History yields a turn and all of its ancestors, each once, the highest number first: a turn
// precedes its parents, and after a merge both sides are ordered by their start. It reads on
// demand.
func (db *DB) History(ctx context.Context, from turnstone.Turn) iter.Seq2[turnstone.Turn, error] {
	return func(yield func(turnstone.Turn, error) bool) {
		next, seen := &byNumber{from}, map[turnstone.TurnID]bool{from.ID: true}
		for next.Len() > 0 {
			t := heap.Pop(next).(turnstone.Turn)
			if !yield(t, nil) {
				return
			}
			for _, id := range t.Parents {
				if seen[id] {
					continue
				}
				seen[id] = true
				p, err := turn(ctx, db.sql, id)
				if err != nil {
					yield(turnstone.Turn{}, err)
					return
				}
				heap.Push(next, p)
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
	next, sides := &byNumber{}, map[turnstone.TurnID]int{a.ID: ofA, b.ID: ofB}
	heap.Push(next, a)
	heap.Push(next, b)
	// A turn's number is greater than its parents' numbers: all later turns have been visited
	// before it.
	for next.Len() > 0 {
		t := heap.Pop(next).(turnstone.Turn)
		if sides[t.ID] == ofA|ofB {
			return t, true, nil
		}
		for _, id := range t.Parents {
			if sides[id] == 0 {
				p, err := turn(ctx, db.sql, id)
				if err != nil {
					return turnstone.Turn{}, false, err
				}
				heap.Push(next, p)
			}
			sides[id] |= sides[t.ID]
		}
	}
	return turnstone.Turn{}, false, nil
}

// byNumber is a heap of turns, the highest number on top.
type byNumber []turnstone.Turn

func (h byNumber) Len() int           { return len(h) }
func (h byNumber) Less(i, j int) bool { return h[i].Number > h[j].Number }
func (h byNumber) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byNumber) Push(x any)        { *h = append(*h, x.(turnstone.Turn)) }
func (h *byNumber) Pop() any {
	old := *h
	t := old[len(old)-1]
	*h = old[:len(old)-1]
	return t
}

// Graph returns a session with all of its turns.
func (db *DB) Graph(ctx context.Context, s turnstone.SessionID) (*turnstone.Graph, error) {
	if err := db.reap(ctx); err != nil {
		return nil, err
	}
	tx, err := db.sql.BeginTx(ctx, nil) // a consistent view of all tables
	if err != nil {
		return nil, dbError("graph", string(s), err)
	}
	defer func() { _ = tx.Rollback() }()
	g := &turnstone.Graph{}
	if g.Session, err = find(ctx, tx, string(s)); err != nil {
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
