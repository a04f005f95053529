package inflight

import (
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/records"
)

// Unmade are objects with an idempotency key whose creation failed for now: the repetition of the
// request creates them with the same ID. Without one they fail in the end. Its methods are safe for
// concurrent use.
type Unmade struct {
	mu  sync.Mutex
	all map[usage.Ref]Waiting
}

// A Waiting is an object of Unmade.
type Waiting struct {
	Object records.Object
	Told   bool // the caller has the error
	since  time.Time
}

// Add notes that a creation of o has failed for now. told says that the caller knows.
func (u *Unmade) Add(o records.Object, told bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[usage.Ref]Waiting{}
	}
	u.all[usage.RefOf(o)] = Waiting{Object: o, Told: told, since: time.Now()}
}

// Remove removes o: its creation is being repeated.
func (u *Unmade) Remove(o records.Object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, usage.RefOf(o))
}

// Has reports whether an object waits for its call's repetition.
func (u *Unmade) Has(r usage.Ref) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, has := u.all[r]
	return has
}

// Of returns the IDs of the objects of a node that wait.
func (u *Unmade) Of(node string) (ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for r, w := range u.all {
		if w.Object.Node == node {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// Take removes and returns what waits longer than most.
func (u *Unmade) Take(most time.Duration) []Waiting {
	return u.take(func(w Waiting) bool { return time.Since(w.since) > most })
}

// TakeOf removes and returns the sandboxes of a node.
func (u *Unmade) TakeOf(node string) []Waiting {
	return u.take(func(w Waiting) bool { return w.Object.Node == node && w.Object.Kind == records.Sandbox })
}

func (u *Unmade) take(which func(Waiting) bool) (old []Waiting) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for r, w := range u.all {
		if which(w) {
			old = append(old, w)
			delete(u.all, r)
		}
	}
	return old
}
