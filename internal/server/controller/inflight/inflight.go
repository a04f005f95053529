// Package inflight knows which objects calls work on now.
package inflight

import (
	"context"
	"sync"
)

// Locks are locks by the ID of an object.
type Locks struct {
	mu  sync.Mutex
	all map[string]*lock
}

type lock struct {
	held  chan struct{} // has one element while it is held
	users int
}

// Lock waits for the lock of id, or until ctx ends.
func (l *Locks) Lock(ctx context.Context, id string) (unlock func(), err error) {
	l.mu.Lock()
	if l.all == nil {
		l.all = map[string]*lock{}
	}
	x := l.all[id]
	if x == nil {
		x = &lock{held: make(chan struct{}, 1)}
		l.all[id] = x
	}
	x.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if x.users--; x.users == 0 {
			delete(l.all, id)
		}
	}
	select {
	case x.held <- struct{}{}:
		return func() { <-x.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// Pendings are the IDs of objects whose creation their nodes have not answered. A collection has
// the IDs of a node that were pending at any time since it began: the node's list may have been
// made before it made one of them.
type Pendings struct {
	mu          sync.Mutex
	now         map[string]map[string]int // by node and ID
	collections map[*collection]bool
}

type collection struct {
	node string
	ids  map[string]bool
}

// Add notes IDs as pending until done is called.
func (p *Pendings) Add(node string, ids ...string) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now = map[string]map[string]int{}
	}
	if p.now[node] == nil {
		p.now[node] = map[string]int{}
	}
	for _, id := range ids {
		p.now[node][id]++
		for c := range p.collections {
			if c.node == node {
				c.ids[id] = true
			}
		}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, id := range ids {
			if p.now[node][id]--; p.now[node][id] == 0 {
				delete(p.now[node], id)
			}
		}
	}
}

// Has reports whether an ID is pending.
func (p *Pendings) Has(node, id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now[node][id] > 0
}

// Collect begins a collection, which end ends.
func (p *Pendings) Collect(node string) (end func() []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &collection{node, map[string]bool{}}
	for id := range p.now[node] {
		c.ids[id] = true
	}
	if p.collections == nil {
		p.collections = map[*collection]bool{}
	}
	p.collections[c] = true
	return func() (all []string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.collections, c)
		for id := range c.ids {
			all = append(all, id)
		}
		return all
	}
}
