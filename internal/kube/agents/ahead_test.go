package agents_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pooled makes a pool with its template, and returns a claim of it.
func (w *world) pooled(name string) *extv1.SandboxClaim {
	w.Helper()
	at := metav1.ObjectMeta{Name: name, Namespace: "default"}
	tmpl := &extv1.SandboxTemplate{ObjectMeta: at}
	tmpl.Spec.SandboxBlueprint = sandbox("").Spec.SandboxBlueprint
	w.must(w.admin.Create(w.Context(), tmpl))
	w.must(w.admin.Create(w.Context(), &extv1.SandboxWarmPool{ObjectMeta: at,
		Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: name}}}))
	return &extv1.SandboxClaim{ObjectMeta: at, Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: name}}}
}

// isReady reports whether an object is a Sandbox that is ready by its status.
func isReady(o client.Object) bool {
	s, ok := o.(*sandboxv1.Sandbox)
	return ok && meta.IsStatusConditionTrue(s.Status.Conditions, "Ready")
}

// TestClaimBesideSandbox: the status of a claim is written while that of its Sandbox is.
func TestClaimBesideSandbox(t *testing.T) {
	w := newWorld(t)
	claim := w.pooled("beside")
	var waited atomic.Bool
	w.operator(w.server, func(o client.Object) error {
		if isReady(o) && !waited.Load() { // once: the test may have ended when the last write has
			w.until("the claim is ready before its Sandbox", func() bool {
				c := claim.DeepCopy()
				w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(c), c))
				return meta.IsStatusConditionTrue(c.Status.Conditions, "Ready")
			})
			waited.Store(true)
		}
		return nil
	})
	w.must(w.admin.Create(t.Context(), claim))
	w.becomes(&sandboxv1.Sandbox{ObjectMeta: claim.ObjectMeta}, sandboxv1.SandboxReasonDependenciesReady)
	if !waited.Load() {
		t.Error("the claim was not looked at")
	}
}

// TestClaimWithoutSandboxStatus: a claim is not ready for long if the API server does not take the status of its Sandbox.
func TestClaimWithoutSandboxStatus(t *testing.T) {
	w := newWorld(t)
	claim := w.pooled("refused-status")
	var refuse atomic.Bool
	refuse.Store(true)
	w.operator(w.server, func(o client.Object) error {
		if isReady(o) && refuse.Load() {
			return errors.New("not now")
		}
		return nil
	})
	w.must(w.admin.Create(t.Context(), claim))
	w.becomes(claim, "SandboxNotReady")
	refuse.Store(false)
	w.becomes(claim, sandboxv1.SandboxReasonDependenciesReady)
	w.becomes(&sandboxv1.Sandbox{ObjectMeta: claim.ObjectMeta}, sandboxv1.SandboxReasonDependenciesReady)
}

// TestFirstLook: a new object is not asked for at the server, and one whose sandbox an earlier operator has made, or
// another request, is.
func TestFirstLook(t *testing.T) {
	w := newWorld(t)
	var refuse atomic.Bool
	refuse.Store(true)
	stop := w.operator(w.server, func(o client.Object) error {
		if isReady(o) && refuse.Load() {
			return errors.New("not now")
		}
		return nil
	})
	s := sandbox("first-look")
	w.must(w.admin.Create(t.Context(), s))
	w.until("its sandbox is there", func() bool { return len(w.server.all()) == 1 })
	if n := w.server.asked.Load(); n != 0 {
		t.Errorf("the server was asked %d times", n)
	}
	stop()
	w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s))
	s.Spec.PodTemplate.Spec.Containers[0].WorkingDir = "/other" // another request with the same key
	w.must(w.admin.Update(t.Context(), s))
	refuse.Store(false)
	w.operator(w.server, nil)
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	if all := w.server.all(); len(all) != 1 || w.server.created != 1 || w.server.asked.Load() == 0 {
		t.Errorf("there are %d sandboxes, and the server was asked %d times", len(all), w.server.asked.Load())
	}
}
