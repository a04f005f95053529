package turns

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// runs are the turns that this process follows. Another process finds them by their tickets.
type runs struct {
	server Server
	most   int
	wake   chan event.GenericEvent

	mu   sync.Mutex
	ctx  context.Context // of the manager; nil before its start
	all  map[types.UID]*run
	busy map[string]types.UID // sessions of namespaces, to the Turn that has them
	wg   sync.WaitGroup
}

// A run is one turn.
type run struct {
	key     types.NamespacedName
	session string // in busy; empty: none
	ticket  string
	started bool // it is followed
	done    bool
	report  *turnstone.TurnReport
	err     error
}

func newRuns(s Server, most int) *runs {
	return &runs{server: s, most: most, wake: make(chan event.GenericEvent), all: make(map[types.UID]*run),
		busy: make(map[string]types.UID)}
}

// Start implements manager.Runnable: it runs where the leader is.
func (r *runs) Start(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	<-ctx.Done()
	r.wg.Wait()
	return nil
}

// get returns a copy of a run.
func (r *runs) get(id types.UID) (run, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[id]
	if x == nil {
		return run{}, false
	}
	return *x, true
}

// claim takes a Turn and its session for this caller, unless somebody has them, or there is no room.
func (r *runs) claim(t *v1alpha1.Turn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	session := ""
	if t.Spec.Session != "" {
		session = t.Namespace + "/" + t.Spec.Session
	}
	if _, taken := r.busy[session]; taken && session != "" || r.all[t.UID] != nil || len(r.all) >= r.most ||
		r.ctx == nil || r.ctx.Err() != nil {
		return false
	}
	r.all[t.UID] = &run{key: client.ObjectKeyFromObject(t), session: session}
	if session != "" {
		r.busy[session] = t.UID
	}
	return true
}

// drop forgets a Turn.
func (r *runs) drop(id types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.all[id]; x != nil && r.busy[x.session] == id {
		delete(r.busy, x.session)
	}
	delete(r.all, id)
}

// follow runs a claimed Turn, and wakes its reconciler at the end.
func (r *runs) follow(t *v1alpha1.Turn, ticket string, o Order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[t.UID]
	if x == nil || x.started || r.ctx.Err() != nil {
		return
	}
	x.ticket, x.started = ticket, true
	ctx := r.ctx
	r.wg.Go(func() {
		report, err := r.server.Follow(ctx, x.key.Namespace, ticket, o)
		r.mu.Lock()
		x.done, x.report, x.err = true, report, err
		r.mu.Unlock()
		select {
		case r.wake <- event.GenericEvent{Object: t}:
		case <-ctx.Done():
		}
	})
}

// gone ends the turns of objects with this name that are not id, and forgets them.
func (r *runs) gone(ctx context.Context, key types.NamespacedName, id types.UID) error {
	r.mu.Lock()
	left := make(map[types.UID]run)
	for uid, x := range r.all {
		if x.key == key && uid != id {
			left[uid] = *x
		}
	}
	r.mu.Unlock()
	for uid, x := range left {
		if x.started && !x.done {
			if err := r.server.Cancel(ctx, key.Namespace, x.ticket); err != nil &&
				turnstone.KindOf(err) != turnstone.KindNotFound {
				return err
			}
		}
		r.drop(uid)
	}
	return nil
}
