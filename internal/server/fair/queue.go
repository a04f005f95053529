// Package fair lets the work of tenants wait, and serves tenants in turns: deficit round robin
// (Shreedhar and Varghese, 1995) with a quantum of 1. It reads no wall clock.
package fair

import "slices"

// MaxCost is the greatest cost of an item; a greater one counts as this, and one below 1 as 1.
const MaxCost = 64

// A Queue has items in the order of their service: first in, first out within a tenant, and by
// deficit round robin between tenants. While two tenants wait, what they are served differs by
// less than 2·MaxCost. A Queue is not safe for concurrent use.
type Queue[T comparable] struct {
	ring []*line[T] // of tenants that wait, in the order of the round
	at   int        // whose turn it is
	size int

	blocks int // since the last Unblock
}

// A line is the items of one tenant.
type line[T comparable] struct {
	tenant  string
	items   []item[T]
	deficit int  // cost that the tenant may use in this round
	granted bool // the quantum of this round is in deficit
	blocked int  // greater than 0: not before Unblock; the order
}

type item[T comparable] struct {
	value T
	cost  int
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.size }

// Of returns the number of a tenant's items.
func (q *Queue[T]) Of(tenant string) int {
	if l := q.line(tenant); l != nil {
		return len(l.items)
	}
	return 0
}

func (q *Queue[T]) line(tenant string) *line[T] {
	for _, l := range q.ring {
		if l.tenant == tenant {
			return l
		}
	}
	return nil
}

// Add puts an item at the end of its tenant's line.
func (q *Queue[T]) Add(tenant string, cost int, value T) {
	l := q.line(tenant)
	if l == nil {
		// Before the tenant whose turn it is, which is the end of the round.
		l = &line[T]{tenant: tenant}
		q.ring = slices.Insert(q.ring, q.at, l)
		if len(q.ring) > 1 {
			q.at = (q.at + 1) % len(q.ring)
		}
	}
	l.items = append(l.items, item[T]{value, min(max(cost, 1), MaxCost)})
	q.size++
}

// Next returns the item that is served next, and leaves it where it is: Remove or Block follows.
// There is none if each tenant is blocked.
func (q *Queue[T]) Next() (value T, ok bool) {
	if !slices.ContainsFunc(q.ring, func(l *line[T]) bool { return l.blocked == 0 }) {
		return value, false
	}
	for ; ; q.at = (q.at + 1) % len(q.ring) {
		l := q.ring[q.at]
		if l.blocked > 0 {
			continue // its quantum of this round stays
		}
		if !l.granted {
			l.deficit, l.granted = l.deficit+1, true
		}
		if l.deficit >= l.items[0].cost {
			return l.items[0].value, true
		}
		l.granted = false // the turn is over
	}
}

// Block passes over a tenant whose first item cannot be served now, until Unblock. Others are served
// meanwhile, and the tenant gains nothing but its place: those that were blocked come first then, in
// the order in which they were.
func (q *Queue[T]) Block(tenant string) {
	if l := q.line(tenant); l != nil {
		q.blocks++
		l.blocked = q.blocks
	}
}

// Unblock lets all tenants be served again.
func (q *Queue[T]) Unblock() {
	if !slices.ContainsFunc(q.ring, func(l *line[T]) bool { return l.blocked > 0 }) {
		return
	}
	round := slices.Concat(q.ring[q.at:], q.ring[:q.at])
	slices.SortStableFunc(round, func(a, b *line[T]) int {
		if a.blocked > 0 && b.blocked > 0 {
			return a.blocked - b.blocked
		}
		return b.blocked - a.blocked // the one that was blocked comes first
	})
	for _, l := range round {
		l.blocked = 0
	}
	q.ring, q.at, q.blocks = round, 0, 0
}

// Remove takes an item out, and reports whether it was there. One that was served is charged to
// its tenant; one that has left is not.
func (q *Queue[T]) Remove(tenant string, value T, served bool) bool {
	n := slices.IndexFunc(q.ring, func(l *line[T]) bool { return l.tenant == tenant })
	if n < 0 {
		return false
	}
	l := q.ring[n]
	i := slices.IndexFunc(l.items, func(x item[T]) bool { return x.value == value })
	if i < 0 {
		return false
	}
	if served {
		l.deficit -= l.items[i].cost
	}
	l.items = slices.Delete(l.items, i, i+1)
	q.size--
	if i == 0 {
		l.blocked = 0 // the next item may need something else
	}
	if len(l.items) > 0 {
		return true
	}
	q.ring = slices.Delete(q.ring, n, n+1)
	if n < q.at {
		q.at--
	}
	if len(q.ring) > 0 {
		q.at %= len(q.ring)
	}
	return true
}
