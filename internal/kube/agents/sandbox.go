package agents

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote"
)

// sandboxes reconciles objects of the kind Sandbox.
type sandboxes struct {
	o    *Options
	to   client.Client
	live client.Reader // not the cache

	attempts  attempts
	fleet     *fleet
	followers *followers
	ahead     *ahead
	tell      events.EventRecorder
}

// serves reports whether an object is ours: it was taken, or its class says so.
func (r *sandboxes) serves(s *sandboxv1.Sandbox) bool {
	if class, taken := s.Annotations[ClassAnnotation]; taken {
		return class == RuntimeClass
	}
	return r.o.serves(s.Spec.PodTemplate.Spec.RuntimeClassName)
}

func (o *Options) serves(class *string) bool {
	if class == nil || *class == "" {
		return o.Default
	}
	return *class == RuntimeClass || slices.Contains(o.Classes, *class)
}

// Reconcile implements reconcile.Reconciler.
func (r *sandboxes) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	s := &sandboxv1.Sandbox{}
	if err := r.to.Get(ctx, q.NamespacedName, s); err != nil {
		if apierrors.IsNotFound(err) {
			r.followers.end(q.NamespacedName)
		}
		return result(err)
	}
	if !r.serves(s) {
		return ctrl.Result{}, nil
	}
	if !s.DeletionTimestamp.IsZero() {
		if controllerutil.ContainsFinalizer(s, Finalizer) {
			if left := r.stopping(ctx, s, s.DeletionTimestamp.Time); left > 0 {
				return ctrl.Result{RequeueAfter: left}, nil
			}
		}
		r.followers.end(q.NamespacedName)
		return result(r.end(ctx, s))
	}
	if gone, err := r.claimGone(ctx, s); err != nil || gone {
		if err == nil {
			err = client.IgnoreNotFound(r.to.Delete(ctx, s, client.Preconditions{UID: &s.UID}))
		}
		return result(err)
	}
	if !controllerutil.ContainsFinalizer(s, Finalizer) || s.Annotations[ClassAnnotation] == "" {
		if err := r.take(ctx, s); err != nil {
			return result(err)
		}
	}
	was := s.Status.DeepCopy()
	after, err := r.follow(ctx, s)
	if err != nil {
		r.failed(s, err)
	}
	if !same(was, &s.Status) {
		r.ahead.tell(ctx, s)
		if uerr := r.to.Status().Update(ctx, s); uerr != nil {
			r.ahead.withdraw(ctx, s)
			if err == nil {
				return result(uerr)
			}
			return ctrl.Result{}, errors.Join(err, client.IgnoreNotFound(uerr))
		}
		r.tellEnds(s, was)
	}
	var no Unsupported
	if errors.As(err, &no) || turnstone.KindOf(err) == turnstone.KindInvalid {
		return ctrl.Result{RequeueAfter: after}, nil // until the object changes
	}
	if d := (delayed{}); errors.As(err, &d) {
		return ctrl.Result{RequeueAfter: d.after}, nil
	}
	if err != nil {
		return ctrl.Result{}, err // tried again, less and less often
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// take makes an object ours before anything is made for it.
func (r *sandboxes) take(ctx context.Context, s *sandboxv1.Sandbox) error {
	before := s.DeepCopy()
	controllerutil.AddFinalizer(s, Finalizer)
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, ClassAnnotation, RuntimeClass)
	return r.to.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// claimGone reports whether the claim that an object belongs to is no longer there: nobody else
// removes the object where no garbage collector runs.
func (r *sandboxes) claimGone(ctx context.Context, s *sandboxv1.Sandbox) (bool, error) {
	owner := claimOf(s)
	if owner == nil {
		return false, nil
	}
	k := client.ObjectKey{Namespace: s.Namespace, Name: owner.Name}
	c := &extv1.SandboxClaim{}
	if err := r.to.Get(ctx, k, c); err == nil && c.UID == owner.UID {
		return goesLast(c), nil
	}
	if err := r.live.Get(ctx, k, c); apierrors.IsNotFound(err) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	return c.UID != owner.UID, nil
}

// goesLast reports whether a claim that is deleted waits for its Sandbox to go first.
func goesLast(c *extv1.SandboxClaim) bool {
	return !c.DeletionTimestamp.IsZero() && controllerutil.ContainsFinalizer(c, metav1.FinalizerDeleteDependents)
}

// end ends the sandbox of an object, and lets the object go.
func (r *sandboxes) end(ctx context.Context, s *sandboxv1.Sandbox) error {
	if !controllerutil.ContainsFinalizer(s, Finalizer) {
		return nil
	}
	if err := r.removeAll(ctx, s); err != nil {
		return err
	}
	r.attempts.set(s.UID, 0)
	r.ahead.forget(s.UID)
	before := s.DeepCopy()
	controllerutil.RemoveFinalizer(s, Finalizer)
	return client.IgnoreNotFound(r.to.Patch(ctx, s, client.MergeFromWithOptions(before,
		client.MergeFromWithOptimisticLock{})))
}

// removeAll removes the sandbox of an object, also one whose creation was asked for and not heard of.
func (r *sandboxes) removeAll(ctx context.Context, s *sandboxv1.Sandbox) error {
	all, err := r.o.Server.List(ctx, s.Namespace, r.o.ours(s))
	if err != nil {
		return err
	}
	for _, one := range all {
		if err := r.o.Server.Delete(ctx, s.Namespace, one.SandboxId); err != nil {
			return err
		}
	}
	return nil
}

// follow makes the sandbox what the object says, and the object's status what the sandbox is. It
// returns when to look again.
func (r *sandboxes) follow(ctx context.Context, s *sandboxv1.Sandbox) (time.Duration, error) {
	left := time.Duration(0) // to the end; 0: there is none
	if t := s.Spec.ShutdownTime; t != nil {
		if left = time.Until(t.Time); left <= 0 {
			set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionReady, false,
				sandboxv1.SandboxReasonExpired, "its shutdownTime is over")
			if wait := r.stopping(ctx, s, t.Time); wait > 0 {
				return wait, nil
			}
			return 0, r.expire(ctx, s)
		}
	}
	if ready(s.Status.Conditions).Reason == sandboxv1.SandboxReasonExpired && left == 0 {
		return 0, nil // its machine is gone
	}
	want, m, err := r.o.convert(s)
	if err != nil {
		return r.next(left), err
	}
	if box, err := r.first(ctx, s, want); box != nil || err != nil {
		if err != nil {
			return r.next(left), err
		}
		return r.match(ctx, s, box, m, left)
	}
	all, err := r.o.Server.List(ctx, s.Namespace, r.o.ours(s))
	if err != nil {
		return r.next(left), err
	}
	box := newest(all)
	if box != nil {
		if l := r.lossOf(ctx, s, box); l != nil {
			wait, now, err := r.replace(ctx, s, all, box, l)
			if err != nil || !now {
				return min(wait, r.next(left)), err
			}
			box, all = nil, nil
		}
	}
	if box == nil {
		if s.Spec.OperatingMode == sandboxv1.SandboxOperatingModeSuspended {
			suspended(s)
			return r.next(left), nil
		}
		box, err = r.make(ctx, s, want)
	} else if box.State == v1.SandboxState_SANDBOX_STATE_CREATING {
		box, err = r.recreate(ctx, s, box, want)
	}
	if err != nil {
		return r.next(left), err
	}
	if box.State == v1.SandboxState_SANDBOX_STATE_READY || box.State == v1.SandboxState_SANDBOX_STATE_RUNNING {
		r.removeOthers(ctx, s, all, box)
	}
	return r.match(ctx, s, box, m, left)
}

// newest returns the sandbox of a list that was made last, or nil. One whose creation has failed was never there: its
// end is no end of the object's, which gets another one.
func newest(all []*v1.Sandbox) (last *v1.Sandbox) {
	for _, b := range all {
		if b.Reason == v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED {
			continue
		}
		if last == nil || b.Created.AsTime().After(last.Created.AsTime()) {
			last = b
		}
	}
	return last
}

// next returns when to look again at an object whose time is up in left.
func (r *sandboxes) next(left time.Duration) time.Duration {
	if again := r.o.again(); left <= 0 || again < left {
		return again
	}
	return left
}

// creating is the time between two looks at a sandbox that is being created for an earlier call.
const creating = time.Second

// match makes a sandbox that is there what the object says.
func (r *sandboxes) match(ctx context.Context, s *sandboxv1.Sandbox, b *v1.Sandbox, m Main,
	left time.Duration) (time.Duration, error) {
	switch b.State {
	case v1.SandboxState_SANDBOX_STATE_CREATING:
		r.notReady(s, "the sandbox "+b.SandboxId+" is being created")
		return creating, nil
	case v1.SandboxState_SANDBOX_STATE_STOPPED, v1.SandboxState_SANDBOX_STATE_FAILED:
		r.followers.end(key(s))
		r.finished(s, true, "the sandbox "+b.SandboxId+" has ended: "+remote.ReasonText(b.Reason))
		return r.next(left), nil
	}
	if err := r.prolong(ctx, s.Namespace, b, left); err != nil {
		return r.next(left), err
	}
	if s.Spec.OperatingMode == sandboxv1.SandboxOperatingModeSuspended {
		r.followers.end(key(s))
		if !b.Paused {
			if err := r.o.Server.Pause(ctx, s.Namespace, b.SandboxId); err != nil {
				return r.next(left), err
			}
		}
		suspended(s)
		return r.next(left), nil
	}
	if b.Paused {
		if err := r.o.Server.Resume(ctx, s.Namespace, b.SandboxId); err != nil {
			return r.next(left), err
		}
	}
	return r.next(left), r.contained(ctx, s, b, m)
}

// prolong sets the sandbox's own end: at the object's, so that it ends also while nobody follows it, or
// far away.
func (r *sandboxes) prolong(ctx context.Context, namespace string, b *v1.Sandbox, left time.Duration) error {
	const near = time.Minute
	now := time.Until(b.Expires.AsTime())
	want := life
	if left > 0 && left < life {
		want = left + near // the operator ends it first, and says why
		if d := now - want; -near < d && d < near {
			return nil
		}
	} else if b.Expires == nil || now > life/2 {
		return nil
	}
	return r.o.Server.SetLife(ctx, namespace, b.SandboxId, want)
}

// expire ends the sandbox of an object whose time is up.
func (r *sandboxes) expire(ctx context.Context, s *sandboxv1.Sandbox) error {
	r.followers.end(key(s))
	if err := r.removeAll(ctx, s); err != nil {
		return err
	}
	if p := s.Spec.ShutdownPolicy; p != nil && *p == sandboxv1.ShutdownPolicyDelete {
		return client.IgnoreNotFound(r.to.Delete(ctx, s, client.Preconditions{UID: &s.UID}))
	}
	s.Status = sandboxv1.SandboxStatus{Conditions: s.Status.Conditions}
	remove(&s.Status.Conditions, sandboxv1.SandboxConditionPodScheduled)
	set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionReady, false,
		sandboxv1.SandboxReasonExpired, "its shutdownTime is over")
	return nil
}

// running says that the sandbox is there, and whether its container is ready; why is empty if it is.
func running(s *sandboxv1.Sandbox, b *v1.Sandbox, reason, why string) {
	c, g := &s.Status.Conditions, s.Generation
	s.Status.NodeName = b.Node
	remove(c, sandboxv1.SandboxConditionFinished)
	set(c, g, sandboxv1.SandboxConditionSuspended, false, sandboxv1.SandboxReasonNotSuspended, "it runs")
	set(c, g, sandboxv1.SandboxConditionPodScheduled, true, sandboxv1.SandboxReasonPodScheduled, "")
	if why != "" {
		set(c, g, sandboxv1.SandboxConditionReady, false, reason, why)
		return
	}
	set(c, g, sandboxv1.SandboxConditionReady, true, sandboxv1.SandboxReasonDependenciesReady,
		"the sandbox "+b.SandboxId+" is ready")
}

// suspended says that the sandbox is paused with its memory, or was not made yet.
func suspended(s *sandboxv1.Sandbox) {
	c, g := &s.Status.Conditions, s.Generation
	s.Status.NodeName, s.Status.PodIPs = "", nil
	set(c, g, sandboxv1.SandboxConditionSuspended, true, sandboxv1.SandboxReasonSuspendedPodTerminated,
		"it is paused with its memory")
	set(c, g, sandboxv1.SandboxConditionReady, false, sandboxv1.SandboxReasonSuspended, "it is suspended")
}

func (r *sandboxes) notReady(s *sandboxv1.Sandbox, why string) {
	set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionReady, false,
		sandboxv1.SandboxReasonDependenciesNotReady, why)
}

// finished says that the sandbox, or its process, has ended by itself.
func (r *sandboxes) finished(s *sandboxv1.Sandbox, failed bool, why string) {
	reason := sandboxv1.SandboxReasonPodSucceeded
	if failed {
		reason = sandboxv1.SandboxReasonPodFailed
	}
	set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionFinished, true, reason, why)
	set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionReady, false, reason, why)
}

// failed says why the sandbox is not what the object says.
func (r *sandboxes) failed(s *sandboxv1.Sandbox, err error) {
	reason, text := ReasonError, err.Error()
	if hint := turnstone.HintOf(err); hint != "" {
		text += " (" + hint + ")"
	}
	var no Unsupported
	if errors.As(err, &no) || turnstone.KindOf(err) == turnstone.KindInvalid {
		reason = ReasonInvalid
	}
	set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionReady, false, reason, text)
}
