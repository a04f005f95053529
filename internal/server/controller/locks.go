package controller

import (
	"sync"
	"time"

	"turnstone.dev/turnstone/internal/server/controller/usage"
	"turnstone.dev/turnstone/internal/server/records"
)

// unmade are objects with an idempotency key whose creation failed for now: the repetition of the
// request creates them with the same ID. Without one they fail in the end.
type unmade struct {
	mu  sync.Mutex
	all map[usage.Ref]waiting
}

type waiting struct {
	object records.Object
	since  time.Time
	told   bool // the caller has the error
}

func (u *unmade) add(o records.Object, told bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.all == nil {
		u.all = map[usage.Ref]waiting{}
	}
	u.all[usage.RefOf(o)] = waiting{o, time.Now(), told}
}

func (u *unmade) remove(o records.Object) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, usage.RefOf(o))
}

// take removes and returns what waits longer than most.
func (u *unmade) take(most time.Duration) (old []waiting) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for r, w := range u.all {
		if time.Since(w.since) > most {
			old = append(old, w)
			delete(u.all, r)
		}
	}
	return old
}
