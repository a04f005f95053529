// Package steady keeps an operator of Kubernetes useful while one namespace floods it, and while the API
// server is away.
package steady

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"turnstone.dev/turnstone/internal/server/fair"
)

// NewQueue returns a work queue that serves namespaces in turns, for controller.Options: an object waits
// for those of its own namespace, and not for a flood of another one.
func NewQueue(name string, l workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	q := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name,
		Queue: &byNamespace{}})
	return workqueue.NewTypedRateLimitingQueueWithConfig(l,
		workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name,
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
				workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: q})})
}

// byNamespace is the order of a work queue, which guards it.
type byNamespace struct{ q fair.Queue[reconcile.Request] }

// Touch implements workqueue.Queue: who asks again keeps its place.
func (b *byNamespace) Touch(reconcile.Request) {}

// Push implements workqueue.Queue.
func (b *byNamespace) Push(r reconcile.Request) { b.q.Add(r.Namespace, 1, r) }

// Len implements workqueue.Queue.
func (b *byNamespace) Len() int { return b.q.Len() }

// Pop implements workqueue.Queue.
func (b *byNamespace) Pop() reconcile.Request {
	r, _ := b.q.Next() // the work queue asks only if there is one
	b.q.Remove(r.Namespace, r, true)
	return r
}

// later is when an object is looked at that found the workers of its namespace at work.
const later = 200 * time.Millisecond

// Share bounds the objects of one namespace that are worked on at one time, because each may wait long
// for the server: most is less than the workers, and the others are left to other namespaces.
func Share(most int, r reconcile.Reconciler) reconcile.Reconciler {
	return &share{Reconciler: r, most: most, busy: map[string]int{}}
}

type share struct {
	reconcile.Reconciler
	most int

	mu   sync.Mutex
	busy map[string]int // by namespace
}

// Reconcile implements reconcile.Reconciler.
func (s *share) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if !s.enter(q.Namespace) {
		return reconcile.Result{RequeueAfter: later}, nil
	}
	defer s.leave(q.Namespace)
	return s.Reconciler.Reconcile(ctx, q)
}

func (s *share) enter(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[namespace] >= s.most {
		return false
	}
	s.busy[namespace]++
	return true
}

func (s *share) leave(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[namespace]--; s.busy[namespace] == 0 {
		delete(s.busy, namespace)
	}
}
