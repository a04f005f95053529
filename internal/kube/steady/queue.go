// Package steady keeps an operator of Kubernetes useful while one namespace floods it, and while the API
// server is away.
package steady

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Bounds of the time after which an object is tried again whose look has failed: it doubles.
const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = time.Minute
	// retryRate and retryBurst bound the retries of all objects of a kind, per second.
	retryRate, retryBurst = 10, 100
)

// Retries returns a rate limiter for controller.Options, as the usual one, but for its last delay, which
// would be a quarter of an hour. Each controller has its own: it counts by the objects' names.
func Retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedMaxOfRateLimiter(
		workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
		&workqueue.TypedBucketRateLimiter[reconcile.Request]{Limiter: rate.NewLimiter(retryRate, retryBurst)})
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

// later is when an object is looked at that found the workers of its namespace at work, and pace how
// much later for each other one that waits so: a flood that waits costs little.
const (
	later = 200 * time.Millisecond
	pace  = 2 * time.Millisecond
)

// Fits reports whether a namespace that has some of the places that are taken may have another one: it
// has at most half of those that other namespaces leave. However many places a namespace fills, the
// next one finds some.
func Fits(has, taken, places int) bool {
	return fair.Fits(has, taken, places)
}

// Share bounds the objects of one namespace that are worked on at one time, as Fits says, because each
// may wait long for the server, for an image, or for what runs in a sandbox.
func Share(workers int, r reconcile.Reconciler) reconcile.Reconciler {
	return &share{Reconciler: Calm(r), workers: workers, busy: map[string]int{},
		waits: map[string]map[reconcile.Request]bool{}}
}

type share struct {
	reconcile.Reconciler
	workers int

	mu    sync.Mutex
	taken int
	busy  map[string]int                        // by namespace
	waits map[string]map[reconcile.Request]bool // by namespace
}

// Reconcile implements reconcile.Reconciler.
func (s *share) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	if wait := s.enter(q); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	defer s.leave(q.Namespace)
	return s.Reconciler.Reconcile(ctx, q)
}

// Calm takes a conflict for no failure, of which the log would tell as of an error: an object that has
// changed since it was read is looked at again.
func Calm(r reconcile.Reconciler) reconcile.Reconciler { return calm{r} }

type calm struct{ reconcile.Reconciler }

// Soon is when an object is looked at again whose change the cache has not seen.
const Soon = 50 * time.Millisecond

// Reconcile implements reconcile.Reconciler.
func (c calm) Reconcile(ctx context.Context, q reconcile.Request) (reconcile.Result, error) {
	r, err := c.Reconciler.Reconcile(ctx, q)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: Soon}, nil
	}
	return r, err
}

// enter takes a worker, or returns when to ask again.
func (s *share) enter(q reconcile.Request) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, waits := q.Namespace, s.waits[q.Namespace]
	if !Fits(s.busy[n], s.taken, s.workers) {
		if waits == nil {
			waits = make(map[reconcile.Request]bool)
			s.waits[n] = waits
		}
		waits[q] = true
		return max(later, time.Duration(len(waits))*pace)
	}
	if delete(waits, q); len(waits) == 0 {
		delete(s.waits, n)
	}
	s.busy[n]++
	s.taken++
	return 0
}

func (s *share) leave(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.busy[namespace]--; s.busy[namespace] == 0 {
		delete(s.busy, namespace)
	}
}
