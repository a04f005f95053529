package turns

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/steady"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// runs are the turns that this process follows. Another process finds them by their tickets.
type runs struct {
	server Server
	most   int // turns
	bytes  int // of their documents
	wake   chan event.GenericEvent

	mu   sync.Mutex
	ctx  context.Context // of the manager; nil before its start
	all  map[types.UID]*run
	busy map[string]types.UID         // sessions of namespaces, to the Turn that has them
	of   map[string]int               // namespaces, to their runs
	held map[string]int               // namespaces, to the bytes of their documents
	sum  int                          // of held
	late map[types.NamespacedName]int // Turns that found no place, to the bytes of their documents
	wg   sync.WaitGroup
}

// A run is one turn.
type run struct {
	key     types.NamespacedName
	session string // in busy; empty: none
	ticket  string
	size    int  // of the document
	started bool // it is followed
	done    bool
	report  *turnstone.TurnReport
	err     error
}

func newRuns(s Server, most, bytes int) *runs {
	return &runs{server: s, most: most, bytes: bytes, wake: make(chan event.GenericEvent), all: make(map[types.UID]*run),
		busy: make(map[string]types.UID), of: make(map[string]int),
		held: make(map[string]int), late: make(map[types.NamespacedName]int)}
}

// Start implements manager.Runnable: it runs where the leader is.
func (r *runs) Start(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock() // no turn is followed from now on
	r.ctx = nil
	r.mu.Unlock()
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

// pace is how much later a Turn is looked at again for each one that waits: a flood that waits costs
// little.
const pace = 2 * time.Millisecond

// claim takes a Turn and its session for this caller, unless somebody has them, or there is no room for
// its namespace: then it returns when to ask again.
func (r *runs) claim(t *v1alpha1.Turn) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	session := ""
	if t.Spec.Session != "" {
		session = t.Namespace + "/" + t.Spec.Session
	}
	key := client.ObjectKeyFromObject(t)
	if _, taken := r.busy[session]; taken && session != "" || r.all[t.UID] != nil ||
		!steady.Fits(r.of[t.Namespace], len(r.all), r.most) || r.ctx == nil || r.ctx.Err() != nil {
		return r.wait(key, r.late[key])
	}
	if size := r.late[key]; size > 0 && !steady.Fits(r.held[t.Namespace], r.sum, r.bytes) {
		return r.wait(key, size)
	}
	delete(r.late, key)
	r.all[t.UID] = &run{key: key, session: session}
	r.of[t.Namespace]++
	if session != "" {
		r.busy[session] = t.UID
	}
	return 0
}

// wait notes that a Turn waits, and returns when to ask again. The caller holds mu.
func (r *runs) wait(key types.NamespacedName, size int) time.Duration {
	r.late[key] = size
	return max(again, time.Duration(len(r.late))*pace)
}

// hold notes the size of a claimed Turn's document, or returns when to ask again for the Turn.
func (r *runs) hold(t *v1alpha1.Turn, size int) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[t.UID]
	if x == nil || size == 0 {
		return 0
	}
	if !steady.Fits(r.held[t.Namespace], r.sum, r.bytes) {
		return r.wait(x.key, size)
	}
	x.size = size
	r.held[t.Namespace] += size
	r.sum += size
	return 0
}

// drop forgets a Turn.
func (r *runs) drop(id types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[id]
	if x == nil {
		return
	}
	if r.busy[x.session] == id {
		delete(r.busy, x.session)
	}
	if r.of[x.key.Namespace]--; r.of[x.key.Namespace] == 0 {
		delete(r.of, x.key.Namespace)
	}
	r.sum -= x.size
	if r.held[x.key.Namespace] -= x.size; r.held[x.key.Namespace] == 0 {
		delete(r.held, x.key.Namespace)
	}
	delete(r.all, id)
}

// follow runs a claimed Turn, and wakes its reconciler at the end.
func (r *runs) follow(t *v1alpha1.Turn, ticket string, o Order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[t.UID]
	if x == nil || x.started || r.ctx == nil || r.ctx.Err() != nil {
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
	if id == "" {
		delete(r.late, key)
	}
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
