package turns

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// sessions serves Sessions.
type sessions struct {
	o    *Options
	to   client.Client
	tell events.EventRecorder
}

// main is the branch of a session without a parent.
const main = "main"

// Reconcile looks at a Session.
func (r *sessions) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	s := &v1alpha1.Session{}
	if err := r.to.Get(ctx, q.NamespacedName, s); err != nil {
		return result(err)
	}
	if s.DeletionTimestamp != nil {
		return r.remove(ctx, s)
	}
	if err := r.keep(ctx, s); err != nil {
		return result(err)
	}
	before := s.DeepCopy()
	err := r.look(ctx, s)
	if err != nil && passing(err) {
		r.o.Log.Info("a session waits for the server", "session", q.String(), "error", err)
		return ctrl.Result{RequeueAfter: againIn}, nil
	}
	s.Status.ObservedGeneration = s.Generation
	if err != nil {
		reason := v1alpha1.ReasonFailed
		if turnstone.KindOf(err) == turnstone.KindDenied {
			reason = v1alpha1.ReasonDenied
		}
		set(&s.Status.Conditions, s, v1alpha1.Ready, false, reason, text(err))
	} else {
		set(&s.Status.Conditions, s, v1alpha1.Ready, true, v1alpha1.ReasonReady, "")
	}
	again := ctrl.Result{}
	// A parent may come, and a session of somebody else may go.
	if k := turnstone.KindOf(err); err != nil && (k == turnstone.KindNotFound || k == turnstone.KindDenied) {
		again.RequeueAfter = or(r.o.Settle, settleTime)
	}
	if same(before.Status, s.Status) {
		return again, nil
	}
	if wrote := r.to.Status().Update(ctx, s); wrote != nil {
		return result(wrote)
	}
	if err != nil {
		r.tell.Eventf(s, nil, corev1.EventTypeWarning, v1alpha1.ReasonFailed, "Make", "%s", text(err))
	}
	return again, nil
}

// keep sets the finalizer as the policy says.
func (r *sessions) keep(ctx context.Context, s *v1alpha1.Session) error {
	before := s.DeepCopy()
	changed := false
	if s.Spec.DeletionPolicy == v1alpha1.Delete {
		changed = controllerutil.AddFinalizer(s, Finalizer)
	} else {
		changed = controllerutil.RemoveFinalizer(s, Finalizer)
	}
	if !changed {
		return nil
	}
	return r.to.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// look makes what is missing, and reads the head.
func (r *sessions) look(ctx context.Context, s *v1alpha1.Session) error {
	st := &s.Status
	var id, name, branch string
	var err error
	if p := s.Spec.Parent; p != nil {
		if branch = s.Name; branch == main {
			return turnstone.Errorf("kube.session", turnstone.KindInvalid, "fork "+branch,
				"has the name of the branch that its parent has").WithHint("use another name")
		}
		id, name, err = r.o.Server.Fork(ctx, s.Namespace, *p, branch)
	} else {
		branch, name = main, s.Name
		id, err = r.o.Server.Make(ctx, s.Namespace, name, string(s.UID))
	}
	if err != nil {
		return err
	}
	head, turns, err := r.o.Server.Head(ctx, s.Namespace, id, branch)
	if err != nil {
		return err
	}
	st.ID, st.Session, st.Branch, st.Head, st.Turns = id, name, branch, head, &turns
	return nil
}

// remove does what the policy says, once no Turn of the Session runs.
func (r *sessions) remove(ctx context.Context, s *v1alpha1.Session) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(s, Finalizer) {
		return ctrl.Result{}, nil
	}
	if s.Spec.DeletionPolicy == v1alpha1.Delete {
		name, branch := s.Name, ""
		if p := s.Spec.Parent; p != nil {
			name, branch = p.Session, s.Name
		}
		err := r.o.Server.Remove(ctx, s.Namespace, name, branch)
		// Somebody else's session stays, and what has a name that no session or branch can have, or that of
		// the branch that every session has: this object was never ready.
		kind := turnstone.KindOf(err)
		if err != nil && kind != turnstone.KindDenied && kind != turnstone.KindInvalid {
			r.o.Log.Info("a session was not removed", "session", s.Namespace+"/"+s.Name, "error", err)
			return ctrl.Result{RequeueAfter: againIn}, nil
		}
	}
	before := s.DeepCopy()
	controllerutil.RemoveFinalizer(s, Finalizer)
	return result(r.to.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// templates serves TurnTemplates.
type templates struct {
	o    *Options
	to   client.Client
	tell events.EventRecorder
}

// Reconcile builds a TurnTemplate once.
func (r *templates) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	t := &v1alpha1.TurnTemplate{}
	if err := r.to.Get(ctx, q.NamespacedName, t); err != nil {
		return result(err)
	}
	s := &t.Status
	if t.DeletionTimestamp != nil || ready(s.Conditions) {
		return ctrl.Result{}, nil
	}
	built, err := r.o.Server.Build(ctx, t.Namespace, t.Spec.Image)
	switch {
	case err != nil && passing(err):
		set(&s.Conditions, t, v1alpha1.Ready, false, v1alpha1.ReasonPending, text(err))
	case err == nil && t.Spec.Digest != "" && string(built) != t.Spec.Digest:
		err = &refusal{v1alpha1.ReasonDigestMismatch, "the template is " + string(built) + ", and not " + t.Spec.Digest}
		set(&s.Conditions, t, v1alpha1.Ready, false, v1alpha1.ReasonDigestMismatch, err.Error())
	case err != nil:
		set(&s.Conditions, t, v1alpha1.Ready, false, v1alpha1.ReasonFailed, text(err))
	default:
		s.Digest = sum(built)
		set(&s.Conditions, t, v1alpha1.Ready, true, v1alpha1.ReasonReady, "")
	}
	s.ObservedGeneration = t.Generation
	if wrote := r.to.Status().Update(ctx, t); wrote != nil {
		return result(wrote)
	}
	if err == nil {
		return ctrl.Result{}, nil
	}
	r.tell.Eventf(t, nil, corev1.EventTypeWarning, v1alpha1.ReasonFailed, "Build", "%s", text(err))
	var no *refusal
	if passing(err) && !errors.As(err, &no) {
		return ctrl.Result{RequeueAfter: or(r.o.Settle, settleTime)}, nil
	}
	return ctrl.Result{}, nil
}
