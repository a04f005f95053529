package keyring

import (
	"time"

	"turnstone.dev/turnstone"
)

// inMemory returns a use of the key in memory, or nil.
func (r *Ring) inMemory(id ID) *Opened {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.kept[id]
	if e == nil {
		return nil
	}
	return r.use(id, e)
}

// use returns a use of an entry, or nil if its wrapping key's owner has ended the loan. The caller
// holds mu.
func (r *Ring) use(id ID, e *entry) *Opened {
	o := &Opened{id: id, ring: r, e: e}
	if e.by != nil {
		free, err := e.by.Hold(e.name)
		if err != nil {
			r.drop(id)
			return nil
		}
		o.free = free
	}
	e.uses++
	e.used = time.Now()
	return o
}

// keep takes a key that w wraps into memory and returns a use of it. The Ring owns the key from then
// on.
func (r *Ring) keep(id ID, key Key, w Wrapping) (*Opened, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		key.Erase()
		return nil, turnstone.Errorf("keyring.open", turnstone.KindUnavailable, subject(id),
			"the keyring is closed")
	}
	r.drop(id)
	r.makeRoom()
	e := &entry{key: key, kept: true}
	e.by, _ = r.o.Wrappers[w.Kind].(Lender)
	e.name = w.Name
	e.timer = time.AfterFunc(r.o.Keep, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.kept[id] == e {
			r.drop(id)
		}
	})
	r.kept[id] = e
	if o := r.use(id, e); o != nil {
		return o, nil
	}
	return nil, turnstone.NewError("keyring.open", turnstone.KindUnavailable, subject(id), ErrLocked)
}

// makeRoom drops the keys that were used the longest time ago. The caller holds mu.
func (r *Ring) makeRoom() {
	for len(r.kept) >= r.o.Keys {
		var oldest ID
		var used time.Time
		for id, e := range r.kept {
			if used.IsZero() || e.used.Before(used) {
				oldest, used = id, e.used
			}
		}
		r.drop(oldest)
	}
}

// drop forgets a key. The memory of a key in use is erased at the end of its last use. The caller
// holds mu.
func (r *Ring) drop(id ID) {
	e := r.kept[id]
	if e == nil {
		return
	}
	delete(r.kept, id)
	e.timer.Stop()
	e.kept = false
	if e.uses == 0 {
		e.key.Erase()
	}
}

// release ends a use. The caller holds mu.
func (r *Ring) release(e *entry) {
	e.uses--
	if e.uses == 0 && !e.kept {
		e.key.Erase()
	}
}

// Forget drops a key from memory: the next Open unwraps it again. Uses go on.
func (r *Ring) Forget(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(id)
}

// forgetOf drops the keys that a wrapping key of l unwrapped.
func (r *Ring) forgetOf(l Lender, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.kept {
		if e.by == l && e.name == name {
			r.drop(id)
		}
	}
}

// Close forgets all keys. Those in use are erased at the end of their last use.
func (r *Ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for id := range r.kept {
		r.drop(id)
	}
	for id, l := range r.claims {
		r.table.unclaim(id, l)
	}
	clear(r.claims)
}
