package turns

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"turnstone.dev/turnstone/internal/kube/steady"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

const (
	// parallel bounds the objects of a kind that are looked at in the same moment. A turn that runs is
	// not among them.
	parallel = 32
	// builds bounds the templates that are built at a time.
	builds = 6
	// reads bounds the documents that are read at a time, and readTime the time of each: they have up to
	// 16 MiB.
	reads    = 4
	readTime = time.Minute
	// lookTime bounds one look at an object, and buildTime the build of a template.
	lookTime  = 15 * time.Minute
	buildTime = 2 * time.Hour
)

// Add makes a manager serve the objects, whose kinds are in its scheme.
func Add(m manager.Manager, o *Options) error {
	skip := true // names of controllers are of one process here, which may have several managers
	options := func(n int, most time.Duration) controller.Options {
		return controller.Options{MaxConcurrentReconciles: n, SkipNameValidation: &skip, NewQueue: steady.NewQueue,
			RateLimiter: steady.Retries(), ReconciliationTimeout: most}
	}
	meant := builder.WithPredicates(steady.Meant())
	if err := m.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Turn{}, bySession,
		func(x client.Object) []string {
			if t, ok := x.(*v1alpha1.Turn); ok && t.Spec.Session != "" {
				return []string{t.Spec.Session}
			}
			return nil
		}); err != nil {
		return err
	}
	all := newRuns(o.Server, or(o.Most, mostRuns), or(o.Held, mostHeld))
	if err := m.Add(all); err != nil {
		return err
	}
	tell := m.GetEventRecorder("turn-operator")
	some := &turns{o: o, to: m.GetClient(), live: m.GetAPIReader(), runs: all, tell: tell, reads: make(chan struct{}, reads)}
	if err := ctrl.NewControllerManagedBy(m).For(&v1alpha1.Turn{}).
		WatchesRawSource(source.Channel(all.wake, &handler.EnqueueRequestForObject{})).
		Watches(&v1alpha1.Turn{}, handler.Funcs{UpdateFunc: some.changed, DeleteFunc: some.deleted}).
		Watches(&v1alpha1.Session{}, handler.EnqueueRequestsFromMapFunc(some.waiting)).
		Watches(&v1alpha1.TurnTemplate{}, handler.EnqueueRequestsFromMapFunc(some.waiting)).
		WithOptions(options(parallel, lookTime)).Complete(steady.Share(parallel, some)); err != nil {
		return err
	}
	of := &sessions{o: o, to: m.GetClient(), tell: tell}
	if err := ctrl.NewControllerManagedBy(m).For(&v1alpha1.Session{}).
		Watches(&v1alpha1.Turn{}, handler.Funcs{UpdateFunc: of.moved}).
		WithOptions(options(parallel, lookTime)).Complete(steady.Share(parallel, of)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(m).For(&v1alpha1.TurnTemplate{}, meant).
		WithOptions(options(builds, buildTime)).
		Complete(steady.Share(builds, &templates{o: o, to: steady.Fresh(m.GetClient()), tell: tell}))
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// changed wakes the next Turn of a Session when one has ended.
func (r *turns) changed(ctx context.Context, e event.UpdateEvent, q queue) {
	was, ok := e.ObjectOld.(*v1alpha1.Turn)
	is, also := e.ObjectNew.(*v1alpha1.Turn)
	if ok && also && !ended(was) && ended(is) {
		r.next(ctx, is, q)
	}
}

func (r *turns) deleted(ctx context.Context, e event.DeleteEvent, q queue) {
	if t, ok := e.Object.(*v1alpha1.Turn); ok {
		r.next(ctx, t, q)
	}
}

// next asks for the oldest Turn of a Session that has not ended.
func (r *turns) next(ctx context.Context, t *v1alpha1.Turn, q queue) {
	if t.Spec.Session == "" {
		return
	}
	all := &v1alpha1.TurnList{}
	if r.to.List(ctx, all, client.InNamespace(t.Namespace), client.MatchingFields{bySession: t.Spec.Session},
		client.UnsafeDisableDeepCopy) != nil {
		return
	}
	var first *v1alpha1.Turn
	for n := range all.Items {
		if o := &all.Items[n]; !ended(o) && o.UID != t.UID && (first == nil || older(o, first)) {
			first = o
		}
	}
	if first != nil {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(first)})
	}
}

// waiting asks for the Turns that wait for a Session or a TurnTemplate, when it is ready.
func (r *turns) waiting(ctx context.Context, o client.Object) (all []reconcile.Request) {
	session := ""
	switch x := o.(type) {
	case *v1alpha1.Session:
		if session = x.Name; !ready(x.Status.Conditions) {
			return nil
		}
	case *v1alpha1.TurnTemplate:
		if !ready(x.Status.Conditions) {
			return nil
		}
	}
	list, only := &v1alpha1.TurnList{}, []client.ListOption{client.InNamespace(o.GetNamespace()),
		client.UnsafeDisableDeepCopy}
	if session != "" {
		only = append(only, client.MatchingFields{bySession: session})
	}
	if r.to.List(ctx, list, only...) != nil {
		return nil
	}
	for n := range list.Items {
		t := &list.Items[n]
		if !ended(t) {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(t)})
		}
	}
	return all
}

// moved asks for the Session of a Turn that has ended: once for all that end within the time in which
// changes are collected.
func (r *sessions) moved(_ context.Context, e event.UpdateEvent, q queue) {
	was, ok := e.ObjectOld.(*v1alpha1.Turn)
	is, also := e.ObjectNew.(*v1alpha1.Turn)
	if ok && also && !ended(was) && ended(is) && is.Spec.Session != "" {
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: is.Namespace, Name: is.Spec.Session}},
			max(or(r.o.Settle, settleTime), time.Millisecond))
	}
}
