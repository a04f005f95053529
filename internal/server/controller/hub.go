package controller

import (
	"context"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/server/auth"
	"turnstone.dev/turnstone/internal/server/controller/message"
	"turnstone.dev/turnstone/internal/server/records"
)

// A hub tells watchers which objects have changed. A watcher reads the latest state itself, so a
// slow one costs the memory of IDs, and sees no state that is older than one it saw before.
type hub struct {
	mu       sync.Mutex
	max      int
	watchers map[*watcher]bool
}

// A watcher collects the IDs of changed objects of a tenant.
type watcher struct {
	tenant string // empty: templates, which have no tenant
	kind   records.Kind
	wake   chan struct{} // has one element when there is something

	mu  sync.Mutex
	ids map[string]bool
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}

func (h *hub) join(tenant string, kind records.Kind) (w *watcher, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= h.max {
		return nil, nil, &api.Status{RetryAfter: 5 * time.Second, Err: turnstone.Errorf("watch",
			turnstone.KindExhausted, "the server", "has reached its limit of watches").
			WithHint("close some, or try again later")}
	}
	if h.watchers == nil {
		h.watchers = map[*watcher]bool{}
	}
	w = &watcher{tenant: tenant, kind: kind, wake: make(chan struct{}, 1), ids: map[string]bool{}}
	h.watchers[w] = true
	return w, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, w)
	}, nil
}

// changed tells the watchers of an object.
func (h *hub) changed(o records.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		if w.tenant == o.Tenant && w.kind == o.Kind {
			w.add(o.ID)
		}
	}
}

func (h *hub) wakeTemplates() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		if w.tenant == "" {
			w.add("")
		}
	}
}

func (w *watcher) add(id string) {
	w.mu.Lock()
	w.ids[id] = true
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take removes and returns at most as many IDs as a filter can have.
func (w *watcher) take() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.ids {
		if len(all) == pageSize {
			break
		}
		all = append(all, id)
		delete(w.ids, id)
	}
	return all
}

// A sender sends an event to a caller: an object of the kind that is watched, or none.
type sender func(event v1.WatchEvent, o *message.Seen) error

// attend runs a watch until its caller leaves, its token ends or the controller closes. list sends
// what is there, and change what has changed.
func (c *Controller) attend(ctx context.Context, p auth.Principal, w *watcher, send sender,
	list func() error, change func() error) error {
	if err := list(); err != nil {
		return err
	}
	if err := send(v1.WatchEvent_WATCH_EVENT_SYNCED, nil); err != nil {
		return err
	}
	still, alive := time.NewTicker(c.o.Times.Still), time.NewTicker(c.o.Times.Alive)
	defer still.Stop()
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.ctx.Done():
			return &api.Status{RetryAfter: time.Second, Err: turnstone.Errorf("watch",
				turnstone.KindUnavailable, "the server", "ends").WithHint("watch again")}
		case <-still.C:
			if err := c.o.Verifier.Still(p); err != nil {
				return err
			}
		case <-alive.C:
			if err := send(v1.WatchEvent_WATCH_EVENT_ALIVE, nil); err != nil {
				return err
			}
		case <-w.wake:
			if err := c.o.Verifier.Still(p); err != nil {
				return err
			}
			if err := change(); err != nil {
				return err
			}
		}
	}
}

// watch runs a watch of records. gone reports an object that is to be announced as deleted.
func (c *Controller) watch(ctx context.Context, p auth.Principal, q query, send sender) error {
	w, leave, err := c.hub.join(p.Tenant, q.filter.Kind)
	if err != nil {
		return err
	}
	defer leave()
	known := map[string]bool{}
	list := func() error {
		page := records.Page{Size: pageSize}
		for {
			all, next, err := c.page(ctx, p, q, page)
			if err != nil {
				return err
			}
			for i := range all {
				known[all[i].ID] = true
				if err := send(v1.WatchEvent_WATCH_EVENT_LISTED, &all[i]); err != nil {
					return err
				}
			}
			if page.Token = next; next == "" {
				return nil
			}
		}
	}
	return c.attend(ctx, p, w, send, list, func() error {
		for ids := w.take(); len(ids) > 0; ids = w.take() {
			if err := c.sendChanges(ctx, p, q, ids, known, send); err != nil {
				return err
			}
		}
		return nil
	})
}

// sendChanges sends the objects with these IDs: as changed if they match, and as deleted if they
// did before.
func (c *Controller) sendChanges(ctx context.Context, p auth.Principal, q query, ids []string,
	known map[string]bool, send sender) error {
	rest := map[string]bool{}
	for _, id := range ids {
		rest[id] = true
	}
	narrow := q
	narrow.filter.IDs = intersect(ids, q.filter.IDs)
	if len(narrow.filter.IDs) > 0 {
		all, _, err := c.page(ctx, p, narrow, records.Page{Size: pageSize})
		if err != nil {
			return err
		}
		for i := range all {
			delete(rest, all[i].ID)
			known[all[i].ID] = true
			if err := send(v1.WatchEvent_WATCH_EVENT_CHANGED, &all[i]); err != nil {
				return err
			}
		}
	}
	for id := range rest {
		if !known[id] {
			continue
		}
		delete(known, id)
		o, err := c.o.Records.Object(ctx, p.Tenant, q.filter.Kind, id)
		if turnstone.KindOf(err) == turnstone.KindNotFound && err != nil {
			continue // pruned: it ended long ago
		} else if err != nil {
			return err
		}
		all, err := c.join(ctx, p, []records.Object{o})
		if err != nil {
			return err
		}
		for i := range all { // none if a new name hides it from the caller
			if err := send(v1.WatchEvent_WATCH_EVENT_DELETED, &all[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// intersect returns the elements of ids that are in among; all of them if among is empty.
func intersect(ids, among []string) (both []string) {
	if len(among) == 0 {
		return ids
	}
	set := map[string]bool{}
	for _, id := range among {
		set[id] = true
	}
	for _, id := range ids {
		if set[id] {
			both = append(both, id)
		}
	}
	return both
}
