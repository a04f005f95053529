package fair

import "sync"

// together is how many holders of names a Mutex has at most: those whose changes share one commit, and
// as many that come while it is written.
const together = 128

// A Mutex is a lock of everything, or of names, whose holders follow each other in the order of a
// Queue. Who holds everything is alone. Holders of different names are many at a time. Its zero value
// is unlocked.
type Mutex struct {
	mu    sync.Mutex
	queue Queue[*holder]
	alone bool
	count int             // of holders of names
	names map[string]bool // that are held
}

// A holder has the lock, or waits for it.
type holder struct {
	tenant string
	names  []string      // nil: everything
	turn   chan struct{} // has one element when it holds the lock
}

// Lock waits for the lock of everything.
func (m *Mutex) Lock(tenant string) { m.enter(tenant, nil) }

// Unlock ends a Lock.
func (m *Mutex) Unlock() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alone = false
	m.next()
}

// LockNames waits until nobody holds one of the names, or everything. There is at least one name.
// unlock is called once.
func (m *Mutex) LockNames(tenant string, names ...string) (unlock func()) {
	m.enter(tenant, names)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.count--
		for _, n := range names {
			delete(m.names, n)
		}
		m.next()
	}
}

func (m *Mutex) enter(tenant string, names []string) {
	h := &holder{tenant: tenant, names: names, turn: make(chan struct{}, 1)}
	m.mu.Lock()
	m.queue.Add(tenant, 1, h)
	m.next()
	m.mu.Unlock()
	<-h.turn
}

// next gives the lock to those that are next, as long as it is free for them. Who waits for a name or
// for everything lets nobody pass: its wait has an end. The caller has m.mu.
func (m *Mutex) next() {
	for {
		h, ok := m.queue.Next()
		if !ok || !m.free(h) {
			return
		}
		m.queue.Remove(h.tenant, h, true)
		if m.alone = h.names == nil; !m.alone {
			m.count++
		}
		for _, n := range h.names {
			if m.names == nil {
				m.names = make(map[string]bool)
			}
			m.names[n] = true
		}
		h.turn <- struct{}{}
	}
}

// free reports whether a holder may have the lock now. The caller has m.mu.
func (m *Mutex) free(h *holder) bool {
	if m.alone || h.names == nil && m.count > 0 || m.count >= together {
		return false
	}
	for _, n := range h.names {
		if m.names[n] {
			return false
		}
	}
	return true
}
