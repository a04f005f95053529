package turns

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// turns serves Turns.
type turns struct {
	o    *Options
	to   client.Client
	live client.Reader // not the cache
	runs *runs
	tell events.EventRecorder
	// reads has an element for each document that is being read.
	reads chan struct{}
}

// ended reports whether a Turn's status is final.
func ended(t *v1alpha1.Turn) bool {
	switch t.Status.Phase {
	case v1alpha1.PhasePassed, v1alpha1.PhaseFailed, v1alpha1.PhaseRefused:
		return true
	}
	return false
}

// Reconcile looks at a Turn.
func (r *turns) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	t := &v1alpha1.Turn{}
	if err := r.to.Get(ctx, q.NamespacedName, t); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, r.runs.gone(ctx, q.NamespacedName, "")
	}
	if t.DeletionTimestamp != nil { // somebody else's finalizer keeps the object
		return ctrl.Result{}, r.runs.gone(ctx, q.NamespacedName, "")
	}
	if err := r.runs.gone(ctx, q.NamespacedName, t.UID); err != nil {
		return ctrl.Result{}, err
	}
	if ended(t) {
		r.runs.drop(t.UID)
		return r.expire(ctx, t)
	}
	x, has := r.runs.get(t.UID)
	switch {
	case has && x.done:
		return r.finish(ctx, t, x)
	case has: // the end wakes this reconciler
		return ctrl.Result{}, nil
	}
	return r.begin(ctx, t)
}

// expire deletes an object whose time is over.
func (r *turns) expire(ctx context.Context, t *v1alpha1.Turn) (ctrl.Result, error) {
	if t.Spec.TTLSecondsAfterFinished == nil || t.Status.Finished == nil {
		return ctrl.Result{}, nil
	}
	left := time.Until(t.Status.Finished.Add(time.Duration(*t.Spec.TTLSecondsAfterFinished) * time.Second))
	if left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	return result(r.to.Delete(ctx, t, client.Preconditions{UID: &t.UID}))
}

// begin starts a Turn, or follows one that a former process started.
func (r *turns) begin(ctx context.Context, t *v1alpha1.Turn) (ctrl.Result, error) {
	if before, err := r.before(ctx, t); before || err != nil {
		return ctrl.Result{}, err
	}
	if wait := r.runs.claim(t); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	follows := false
	defer func() {
		if !follows {
			r.runs.drop(t.UID)
		}
	}()
	o, err := r.order(ctx, t)
	var later *waiting
	if t.Status.Ticket != "" && errors.As(err, &later) { // to follow it, nothing else is needed
		o = Order{Key: string(t.UID), Document: func(context.Context) ([]byte, error) { return nil, later }}
	} else if err != nil {
		return r.refuse(ctx, t, err)
	}
	if t.Status.Ticket != "" {
		follows = true
		r.runs.follow(t, t.Status.Ticket, o)
		return ctrl.Result{}, nil
	}
	return r.start(ctx, t, o, &follows)
}

// start reads the document, so that a bad reference is known before anything is reserved, reserves the
// turn, and writes its ticket before it starts.
func (r *turns) start(ctx context.Context, t *v1alpha1.Turn, o Order, follows *bool) (ctrl.Result, error) {
	doc, err := r.document(ctx, t)
	if err != nil {
		return r.refuse(ctx, t, err)
	}
	if wait := r.runs.hold(t, len(doc)); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	o.Document = func(context.Context) ([]byte, error) { return doc, nil }
	ticket, err := r.o.Server.Reserve(ctx, t.Namespace, o)
	if err != nil {
		return r.refuse(ctx, t, err)
	}
	s := &t.Status
	s.ObservedGeneration, s.Phase, s.Ticket, s.Document = t.Generation, v1alpha1.PhaseRunning, ticket, digest(doc)
	s.Image = o.Image
	set(&s.Conditions, t, v1alpha1.Accepted, true, v1alpha1.ReasonAccepted, "")
	set(&s.Conditions, t, v1alpha1.Running, true, v1alpha1.ReasonStarted, "")
	if err := r.to.Status().Update(ctx, t); err != nil {
		return result(err)
	}
	*follows = true
	r.runs.follow(t, ticket, o)
	return ctrl.Result{}, nil
}

// document reads a Turn's document, which is that of its digests.
func (r *turns) document(ctx context.Context, t *v1alpha1.Turn) ([]byte, error) {
	select {
	case r.reads <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.reads }()
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	b, err := r.text(ctx, t)
	if err != nil {
		if turnstone.KindOf(err) == turnstone.KindNotFound {
			return nil, &refusal{v1alpha1.ReasonDocumentNotFound, text(err)}
		}
		return nil, err
	}
	for _, want := range []string{t.Spec.Document.Digest, t.Status.Document} {
		if want != "" && digest(b) != want {
			return nil, &refusal{v1alpha1.ReasonDigestMismatch, "the document is " + digest(b) + ", and not " + want}
		}
	}
	_, err = document.Parse("document", b)
	var faults document.SyntaxErrors
	switch {
	case errors.As(err, &faults) && len(faults) > 0: // what it says stays out of the object
		return nil, &refusal{v1alpha1.ReasonDocumentInvalid, "the document is not valid at line:column " +
			place(faults[0]) + ": turn check of the document says why"}
	case err != nil:
		return nil, &refusal{v1alpha1.ReasonDocumentInvalid, "the document is not valid: turn check of the document says why"}
	}
	return b, nil
}

// text returns the text of a Turn's document.
func (r *turns) text(ctx context.Context, t *v1alpha1.Turn) ([]byte, error) {
	d := t.Spec.Document
	if d.Inline != "" {
		return []byte(d.Inline), nil
	}
	if d.ConfigMap == nil {
		return r.o.Server.Document(ctx, t.Namespace, d)
	}
	m := &corev1.ConfigMap{}
	err := r.live.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: d.ConfigMap.Name}, m)
	switch {
	case apierrors.IsNotFound(err): // it may be applied after the Turn, and nothing tells of it
		return nil, &waiting{v1alpha1.ReasonDocumentNotFound, "there is no ConfigMap " + d.ConfigMap.Name, waitingIn}
	case apierrors.IsForbidden(err):
		return nil, &refusal{v1alpha1.ReasonDenied, "the operator may not read ConfigMaps: the chart's operator.configMaps " +
			"lets it, or use document.inline"}
	case err != nil:
		return nil, turnstone.NewError("kube.document", turnstone.KindUnavailable, "the API server", err)
	}
	if text, has := m.Data[d.ConfigMap.Key]; has {
		return []byte(text), nil
	}
	if b, has := m.BinaryData[d.ConfigMap.Key]; has {
		return b, nil
	}
	return nil, &refusal{v1alpha1.ReasonDocumentNotFound, "the ConfigMap " + d.ConfigMap.Name + " has no key " + d.ConfigMap.Key}
}

// digest returns the digest of a text.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// finish writes the end of a Turn.
func (r *turns) finish(ctx context.Context, t *v1alpha1.Turn, x run) (ctrl.Result, error) {
	if x.report == nil {
		var no *NotStarted
		if errors.As(x.err, &no) {
			r.runs.drop(t.UID)
			if errors.Is(no.Err, ErrExpired) {
				t.Status.Ticket = ""
				return r.begin(ctx, t)
			}
			if passing(no.Err) {
				r.o.Log.Info("a turn waits for the server", "turn", x.key.String(), "error", no.Err)
				return ctrl.Result{RequeueAfter: againIn}, nil
			}
			t.Status.Ticket = "" // it is void
			return r.refuse(ctx, t, no.Err)
		}
	}
	s := &t.Status
	phase, reason, message := outcome(x)
	s.ObservedGeneration, s.Phase = t.Generation, phase
	set(&s.Conditions, t, v1alpha1.Accepted, true, v1alpha1.ReasonAccepted, "")
	set(&s.Conditions, t, v1alpha1.Running, false, v1alpha1.ReasonEnded, "")
	set(&s.Conditions, t, v1alpha1.Completed, true, reason, message)
	before := s.DeepCopy()
	describe(s, x.report)
	err := r.to.Status().Update(ctx, t)
	if apierrors.IsInvalid(err) { // a node's words, which the schema refuses: the end is written without
		before.Finished = now()
		t.Status = *before
		err = r.to.Status().Update(ctx, t)
	}
	if err != nil {
		return result(err)
	}
	r.runs.drop(t.UID)
	if phase == v1alpha1.PhaseFailed {
		r.tell.Eventf(t, nil, corev1.EventTypeWarning, reason, "Run", "%s", or(message, "turn "+s.Turn+" has failed"))
	}
	return r.expire(ctx, t)
}

// refuse writes why a Turn does not run. What may pass is tried again, and not written.
func (r *turns) refuse(ctx context.Context, t *v1alpha1.Turn, err error) (ctrl.Result, error) {
	var later *waiting
	if errors.As(err, &later) {
		return r.wait(ctx, t, later)
	}
	var no *refusal
	if !errors.As(err, &no) {
		if passing(err) {
			r.o.Log.Info("a turn waits for the server", "turn", t.Namespace+"/"+t.Name, "error", err)
			return ctrl.Result{RequeueAfter: againIn}, nil
		}
		no = &refusal{v1alpha1.ReasonRefused, text(err)}
		if turnstone.KindOf(err) == turnstone.KindDenied {
			no.reason = v1alpha1.ReasonDenied
		}
	}
	s := &t.Status
	s.ObservedGeneration, s.Phase = t.Generation, v1alpha1.PhaseRefused
	set(&s.Conditions, t, v1alpha1.Accepted, false, no.reason, no.message)
	set(&s.Conditions, t, v1alpha1.Running, false, no.reason, "")
	set(&s.Conditions, t, v1alpha1.Completed, true, v1alpha1.ReasonRefused, "nothing ran")
	s.Finished = now()
	if err := r.to.Status().Update(ctx, t); err != nil {
		return result(err)
	}
	r.tell.Eventf(t, nil, corev1.EventTypeWarning, no.reason, "Run", "%s", clip(no.message))
	return r.expire(ctx, t)
}

// wait writes what a Turn waits for, once its grace is over.
func (r *turns) wait(ctx context.Context, t *v1alpha1.Turn, w *waiting) (ctrl.Result, error) {
	if left := or(r.o.Grace, graceTime) - time.Since(t.CreationTimestamp.Time); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	before := t.DeepCopy()
	s := &t.Status
	s.ObservedGeneration, s.Phase = t.Generation, v1alpha1.PhaseWaiting
	set(&s.Conditions, t, v1alpha1.Accepted, false, w.reason, w.message)
	if !same(before.Status, t.Status) {
		if err := r.to.Status().Update(ctx, t); err != nil {
			return result(err)
		}
	}
	return ctrl.Result{RequeueAfter: w.again}, nil
}
