package agents

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/steady"
)

// Scheme returns the kinds of objects that are served.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, sandboxv1.AddToScheme,
		extv1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

const (
	// parallel bounds the objects of a kind that are followed at the same time: a sandbox may wait for
	// its image. One namespace has at most half of them.
	parallel = 96
	// poolEvery is the time between two looks at a pool.
	poolEvery = 5 * time.Second
	// sweepEvery is the time between two sweeps, and sweepAge the age of what they look at.
	sweepEvery = 10 * time.Minute
	sweepAge   = 5 * time.Minute
	// lookTime bounds one look at an object.
	lookTime = 15 * time.Minute
)

// Add makes a manager serve the objects.
func Add(m manager.Manager, o *Options) error {
	skip := true // names of controllers are of one process here, which may have several managers
	many := func() controller.Options {
		return controller.Options{MaxConcurrentReconciles: parallel, SkipNameValidation: &skip,
			NewQueue: steady.NewQueue, RateLimiter: steady.Retries(), ReconciliationTimeout: lookTime}
	}
	meant := builder.WithPredicates(steady.Meant())
	recorder := m.GetEventRecorder("turn-operator")
	boxes := &sandboxes{o: o, to: steady.Fresh(m.GetClient()), live: m.GetAPIReader(), tell: recorder,
		fleet: newFleet(o, m.GetClient(), recorder), followers: newFollowers(o), ahead: newAhead()}
	if err := errors.Join(m.Add(boxes.fleet), m.Add(boxes.followers)); err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(m).For(&sandboxv1.Sandbox{}, meant).
		Watches(&extv1.SandboxClaim{}, handler.EnqueueRequestsFromMapFunc(sameName), builder.WithPredicates(goes())).
		WatchesRawSource(source.Channel(boxes.fleet.events, &handler.EnqueueRequestForObject{})).
		WatchesRawSource(source.Channel(boxes.followers.events, &handler.EnqueueRequestForObject{})).
		WithOptions(many()).Complete(steady.Share(parallel, boxes)); err != nil {
		return err
	}
	o.Metrics.follow(m.GetClient(), m.Elected())
	tell := teller{recorder}
	of := &claims{o: o, to: steady.Fresh(m.GetClient()), tell: tell, ahead: boxes.ahead}
	if err := ctrl.NewControllerManagedBy(m).For(&extv1.SandboxClaim{}, meant).
		Owns(&sandboxv1.Sandbox{}, builder.WithPredicates(says())).
		WatchesRawSource(source.Channel(of.ahead.claims, &handler.EnqueueRequestForObject{})).
		Watches(&extv1.SandboxWarmPool{}, handler.EnqueueRequestsFromMapFunc(of.waiting), meant).
		Watches(&extv1.SandboxTemplate{}, handler.EnqueueRequestsFromMapFunc(of.waiting), meant).
		WithOptions(many()).Complete(steady.Calm(of)); err != nil {
		return err
	}
	some := &pools{o: o, to: steady.Fresh(m.GetClient()), every: poolEvery, tell: tell}
	if err := ctrl.NewControllerManagedBy(m).For(&extv1.SandboxWarmPool{}, meant).
		Watches(&extv1.SandboxTemplate{}, handler.EnqueueRequestsFromMapFunc(some.like), meant).
		WithOptions(many()).Complete(steady.Share(parallel, some)); err != nil {
		return err
	}
	if from, ok := o.Server.(Reports); ok && o.Follow != nil {
		if err := m.Add(newFollower(o, from, m.GetClient(), m.GetAPIReader())); err != nil {
			return err
		}
	}
	return m.Add(&sweeper{o: o, live: m.GetAPIReader(), had: map[string]bool{}})
}

// sameName asks for the Sandbox that has the name of a claim.
func sameName(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: key(o)}}
}

// goes passes the end of a claim, after which its Sandbox ends. When a claim comes it has none, and at
// the operator's start each Sandbox is looked at anyhow.
func goes() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || !e.ObjectNew.GetDeletionTimestamp().IsZero()
		}}
}

// says passes what a claim's status repeats of its Sandbox. One that is new says nothing.
func says() predicate.Predicate {
	return predicate.Funcs{CreateFunc: func(e event.CreateEvent) bool {
		s, ok := e.Object.(*sandboxv1.Sandbox)
		return !ok || len(s.Status.Conditions) > 0
	}}
}

// waiting asks for the claims of a namespace that have no sandbox.
func (r *claims) waiting(ctx context.Context, o client.Object) (all []reconcile.Request) {
	list := &extv1.SandboxClaimList{}
	if r.to.List(ctx, list, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	for n := range list.Items {
		if c := &list.Items[n]; c.Status.SandboxStatus.Name == "" {
			all = append(all, reconcile.Request{NamespacedName: key(c)})
		}
	}
	return all
}

// A sweeper removes sandboxes whose objects are gone: such as those whose finalizer a user removed, or
// whose creation reached the server after all.
//
// It remembers namespaces in which there were sandboxes: one may have gone before them. What an earlier
// process knew it learns from the server.
type sweeper struct {
	o       *Options
	live    client.Reader
	had     map[string]bool
	learned bool
}

// Tenants are the namespaces for which an operator has acted at the server. A Server may implement it.
type Tenants interface {
	Tenants(ctx context.Context) ([]string, error)
}

// learn adds the namespaces of earlier processes, once.
func (s *sweeper) learn(ctx context.Context) {
	of, ok := s.o.Server.(Tenants)
	if !ok || s.learned {
		return
	}
	all, err := of.Tenants(ctx)
	if err != nil {
		s.o.Log.Warn("the namespaces of an earlier operator are not known", "error", err)
		return
	}
	for _, name := range all {
		s.had[name] = true
	}
	s.learned = true
}

// Start implements manager.Runnable. It runs where the leader is.
func (s *sweeper) Start(ctx context.Context) error {
	for t := time.NewTicker(sweepEvery); ; {
		if err := s.sweep(ctx, sweepAge); err != nil && ctx.Err() == nil {
			s.o.Log.Warn("sandboxes without objects were not looked for", "error", err)
		}
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// sweep looks at all namespaces.
func (s *sweeper) sweep(ctx context.Context, age time.Duration) error {
	all := &corev1.NamespaceList{}
	if err := s.live.List(ctx, all); err != nil {
		return err
	}
	s.learn(ctx)
	names := make(map[string]bool, len(all.Items)+len(s.had))
	maps.Copy(names, s.had)
	for _, n := range all.Items {
		names[n.Name] = true
	}
	for name := range names {
		boxes, err := s.o.Server.List(ctx, name, Managed(s.o.Cluster, name))
		if err != nil {
			s.o.Log.Warn("the sandboxes of a namespace were not listed", "namespace", name, "error", err)
			continue
		}
		if s.had[name] = len(boxes) > 0; !s.had[name] {
			delete(s.had, name)
		}
		for _, b := range boxes {
			if time.Since(b.Created.AsTime()) < age {
				continue
			}
			if err := s.look(ctx, name, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// look removes a sandbox if its object is gone.
func (s *sweeper) look(ctx context.Context, namespace string, b *v1.Sandbox) error {
	o := &sandboxv1.Sandbox{}
	name, uid, _ := strings.Cut(strings.TrimPrefix(b.ManagedBy, Managed(s.o.Cluster, namespace)), "/")
	err := s.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
	if err == nil && o.UID == types.UID(uid) {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.o.Log.Info("removing a sandbox whose object is gone", "namespace", namespace, "sandbox", b.SandboxId)
	if err := s.o.Server.Delete(ctx, namespace, b.SandboxId); err != nil { // others have to go, too
		s.o.Log.Warn("a sandbox without an object was not removed", "sandbox", b.SandboxId, "error", err)
	}
	return nil
}
