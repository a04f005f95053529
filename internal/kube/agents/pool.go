package agents

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Pools are the sandboxes that wait at the nodes of a server. A Server may implement it.
type Pools interface {
	// SetPool sets how many sandboxes like the one of a request wait, for a time. Without replicas it
	// ends the pool; the request may be nil then.
	SetPool(ctx context.Context, namespace, name string, like *v1.CreateSandboxRequest, replicas int32,
		lives time.Duration) (Waiting, error)
}

// Waiting is how many sandboxes of a pool may wait, how many do, and how many are being made.
type Waiting struct{ Target, Ready, Making int32 }

// pools reconciles objects of the kind SandboxWarmPool.
type pools struct {
	o     *Options
	to    client.Client
	every time.Duration
	tell  teller

	mu   sync.Mutex
	set  map[types.NamespacedName]bool   // by this process
	told map[types.NamespacedName]string // the reason of the last event
	last map[types.NamespacedName]string // the reason at the last look
}

// lives is how many times a target is set before it ends by itself.
const lives = 10

// Reconcile implements reconcile.Reconciler. A target that is no longer set ends by itself, so a pool
// that was deleted needs no finalizer: its target is ended at once if this process has set it.
func (r *pools) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	p := &extv1.SandboxWarmPool{}
	if err := r.to.Get(ctx, q.NamespacedName, p); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.end(ctx, q.NamespacedName)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	t := &extv1.SandboxTemplate{}
	k := client.ObjectKey{Namespace: p.Namespace, Name: p.Spec.TemplateRef.Name}
	if err := r.to.Get(ctx, k, t); err != nil {
		if apierrors.IsNotFound(err) && r.o.Default {
			r.say(p, poolTemplate, "there is no SandboxTemplate "+k.Name)
		}
		return ctrl.Result{RequeueAfter: r.o.again()}, client.IgnoreNotFound(err)
	}
	if !r.o.serves(t.Spec.PodTemplate.Spec.RuntimeClassName) {
		return ctrl.Result{}, nil
	}
	was := p.Status
	waiting, err := r.follow(ctx, p, t)
	if err == nil { // else the last that is known stays
		p.Status.Replicas, p.Status.ReadyReplicas = waiting.Ready+waiting.Making, waiting.Ready
	}
	p.Status.ObservedGeneration = p.Generation
	p.Status.Selector = sandboxv1.SandboxWarmPoolLabel + "=" + p.Name
	if was != p.Status {
		if uerr := r.to.Status().Update(ctx, p); err == nil {
			err = client.IgnoreNotFound(uerr)
		}
	}
	if err != nil {
		return result(err)
	}
	return ctrl.Result{RequeueAfter: r.every}, nil
}

// follow sets the target of a pool.
func (r *pools) follow(ctx context.Context, p *extv1.SandboxWarmPool, t *extv1.SandboxTemplate) (Waiting, error) {
	to, ok := r.o.Server.(Pools)
	if !ok {
		return Waiting{}, nil
	}
	replicas := int32(1)
	if p.Spec.Replicas != nil {
		replicas = max(*p.Spec.Replicas, 0)
	}
	if !p.DeletionTimestamp.IsZero() {
		replicas = 0
	}
	like := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
	t.Spec.SandboxBlueprint.DeepCopyInto(&like.Spec.SandboxBlueprint)
	m, _, err := r.o.convert(like)
	if err != nil {
		r.say(p, poolInvalid, err.Error())
		return Waiting{}, nil // the claims of it say why, too
	}
	r.note(key(p), true)
	w, err := to.SetPool(ctx, p.Namespace, p.Name, m, replicas, lives*r.every)
	if err != nil {
		r.say(p, poolError, err.Error())
		return w, err
	}
	r.o.Metrics.waits(key(p), &poolState{replicas, w.Ready, w.Making})
	reason, message := short(replicas, w)
	r.say(p, reason, message)
	return w, nil
}

// say tells why a pool is short, when that changes. A pool that is short for a moment while sandboxes are
// made says nothing, and one that was full all the time neither. Without room is who has none at two looks:
// the next sandbox is made a moment after a claim.
func (r *pools) say(p *extv1.SandboxWarmPool, reason, message string) {
	k := key(p)
	r.mu.Lock()
	if r.told == nil {
		r.told, r.last = make(map[types.NamespacedName]string), make(map[types.NamespacedName]string)
	}
	before, known := r.told[k]
	early := reason == poolFilling || reason == poolRoom && r.last[k] != poolRoom
	r.last[k] = reason
	if !early {
		r.told[k] = reason
	}
	r.mu.Unlock()
	switch {
	case early, reason == before:
	case reason != poolFull:
		r.tell.tell(p, corev1.EventTypeWarning, reason, "Fill", message)
	case known:
		r.tell.tell(p, corev1.EventTypeNormal, reason, "Fill", message)
	}
}

// end ends the target of a pool that is gone, if this process has set it.
func (r *pools) end(ctx context.Context, k types.NamespacedName) error {
	to, ok := r.o.Server.(Pools)
	r.o.Metrics.waits(k, nil)
	r.mu.Lock()
	ours := r.set[k]
	delete(r.told, k)
	delete(r.last, k)
	r.mu.Unlock()
	if !ok || !ours {
		return nil
	}
	if _, err := to.SetPool(ctx, k.Namespace, k.Name, nil, 0, lives*r.every); err != nil {
		return err
	}
	r.note(k, false)
	return nil
}

// note notes whether this process has set the target of a pool.
func (r *pools) note(k types.NamespacedName, set bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !set {
		delete(r.set, k)
		return
	}
	if r.set == nil {
		r.set = make(map[types.NamespacedName]bool)
	}
	r.set[k] = true
}

// like asks for the pools of a template.
func (r *pools) like(ctx context.Context, o client.Object) (all []reconcile.Request) {
	list := &extv1.SandboxWarmPoolList{}
	if r.to.List(ctx, list, client.InNamespace(o.GetNamespace())) != nil {
		return nil
	}
	for n := range list.Items {
		if p := &list.Items[n]; p.Spec.TemplateRef.Name == o.GetName() {
			all = append(all, reconcile.Request{NamespacedName: key(p)})
		}
	}
	return all
}
