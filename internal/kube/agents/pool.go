package agents

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Pools are the sandboxes that wait at the nodes of a server. A Server may implement it.
type Pools interface {
	// SetPool sets how many sandboxes like the one of a request wait, for a time, and returns how many
	// do.
	SetPool(ctx context.Context, namespace, name string, like *v1.CreateSandboxRequest, replicas int32,
		lives time.Duration) (waiting int32, err error)
}

// pools reconciles objects of the kind SandboxWarmPool.
type pools struct {
	o     *Options
	to    client.Client
	every time.Duration
}

// lives is how many times a target is set before it ends by itself.
const lives = 10

// Reconcile implements reconcile.Reconciler. A target that is no longer set ends by itself, so a pool
// that was deleted needs no finalizer.
func (r *pools) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	p := &extv1.SandboxWarmPool{}
	if err := r.to.Get(ctx, q.NamespacedName, p); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	t := &extv1.SandboxTemplate{}
	k := client.ObjectKey{Namespace: p.Namespace, Name: p.Spec.TemplateRef.Name}
	if err := r.to.Get(ctx, k, t); err != nil {
		return ctrl.Result{RequeueAfter: r.o.again()}, client.IgnoreNotFound(err)
	}
	if !r.o.serves(t.Spec.PodTemplate.Spec.RuntimeClassName) {
		return ctrl.Result{}, nil
	}
	was := p.Status
	waiting, err := r.follow(ctx, p, t)
	p.Status.Replicas, p.Status.ReadyReplicas = waiting, waiting
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
func (r *pools) follow(ctx context.Context, p *extv1.SandboxWarmPool, t *extv1.SandboxTemplate) (int32, error) {
	to, ok := r.o.Server.(Pools)
	if !ok {
		return 0, nil
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
		return 0, nil // the claims of it say why
	}
	return to.SetPool(ctx, p.Namespace, p.Name, m, replicas, lives*r.every)
}
