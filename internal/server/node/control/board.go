package control

import (
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// A name is what tells objects of a node apart.
type name struct{ kind, tenant, id string }

// Kinds of objects.
const (
	kindNode     = "node"
	kindSandbox  = "sandbox"
	kindTurn     = "turn"
	kindSession  = "session"
	kindTemplate = "template"
	kindSnapshot = "snapshot"
)

// A board has the latest description of every object of a node, and tells watchers of changes. A
// watcher that is late gets the latest description of an object only: what waits for it is at most
// one change for each object.
type board struct {
	mu       sync.Mutex
	objects  map[name]*v1.WatchNodeResponse // without event
	watchers map[*watcher]bool
}

// A watcher takes changes from a board.
type watcher struct {
	wake    chan struct{} // has one token if there are changes
	changes map[name]*v1.WatchNodeResponse
	order   []name // of changes
}

func newBoard() *board {
	return &board{objects: make(map[name]*v1.WatchNodeResponse),
		watchers: make(map[*watcher]bool)}
}

// set sets the description of an object.
func (b *board) set(n name, d *v1.WatchNodeResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was := b.objects[n]; was != nil && proto.Equal(was, d) {
		return
	}
	b.objects[n] = d
	b.tell(n, d, v1.WatchEvent_WATCH_EVENT_CHANGED)
}

// get returns the description of an object; nil if there is none.
func (b *board) get(n name) *v1.WatchNodeResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.objects[n]
}

// drop removes an object.
func (b *board) drop(n name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.objects[n]
	if was == nil {
		return
	}
	delete(b.objects, n)
	b.tell(n, was, v1.WatchEvent_WATCH_EVENT_DELETED)
}

// keep removes the objects of a kind and a tenant whose IDs are not in ids.
func (b *board) keep(kind, tenant string, ids map[string]bool) {
	for _, n := range b.names(kind, tenant) {
		if !ids[n.id] {
			b.drop(n)
		}
	}
}

func (b *board) names(kind, tenant string) (all []name) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.objects {
		if n.kind == kind && n.tenant == tenant {
			all = append(all, n)
		}
	}
	return all
}

// each calls f with the description of each object of a kind. f does not use b.
func (b *board) each(kind string, f func(*v1.WatchNodeResponse)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n, d := range b.objects {
		if n.kind == kind {
			f(d)
		}
	}
}

// tell gives a change to all watchers. b.mu is held.
func (b *board) tell(n name, d *v1.WatchNodeResponse, event v1.WatchEvent) {
	if len(b.watchers) == 0 {
		return
	}
	d = withEvent(d, event)
	for w := range b.watchers {
		if w.changes[n] == nil {
			w.order = append(w.order, n)
		}
		w.changes[n] = d
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// withEvent returns d with an event. Descriptions are shared, and never changed.
func withEvent(d *v1.WatchNodeResponse, event v1.WatchEvent) *v1.WatchNodeResponse {
	return &v1.WatchNodeResponse{Event: event, Object: d.Object}
}

// watch returns a watcher and the objects that it begins with; nil if there are limit watchers.
func (b *board) watch(limit int) (*watcher, []*v1.WatchNodeResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.watchers) >= limit {
		return nil, nil
	}
	w := &watcher{wake: make(chan struct{}, 1), changes: make(map[name]*v1.WatchNodeResponse)}
	b.watchers[w] = true
	all := make([]*v1.WatchNodeResponse, 0, len(b.objects))
	for _, d := range b.objects {
		all = append(all, withEvent(d, v1.WatchEvent_WATCH_EVENT_LISTED))
	}
	return w, all
}

func (b *board) unwatch(w *watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watchers, w)
}

// take returns the oldest change of w; nil if there is none.
func (b *board) take(w *watcher) *v1.WatchNodeResponse {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(w.order) == 0 {
		return nil
	}
	n := w.order[0]
	w.order = w.order[1:]
	d := w.changes[n]
	delete(w.changes, n)
	return d
}
