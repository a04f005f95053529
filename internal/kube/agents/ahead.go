package agents

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// ahead has statuses of Sandboxes while they are being written, so that those of their claims are written beside them and
// not after them. A claim may say that its Sandbox is ready a moment before the Sandbox does.
type ahead struct {
	claims chan event.GenericEvent

	mu  sync.Mutex
	all map[types.UID]coming
}

// A coming status replaces that of an object's version.
type coming struct {
	version string
	status  *sandboxv1.SandboxStatus
}

func newAhead() *ahead {
	return &ahead{claims: make(chan event.GenericEvent, parallel), all: map[types.UID]coming{}}
}

// tell asks for a look at the claim of a Sandbox whose new status is about to be written. It does nothing to a Sandbox
// without a claim.
func (a *ahead) tell(ctx context.Context, s *sandboxv1.Sandbox) {
	if claimOf(s) == nil {
		return
	}
	a.mu.Lock()
	a.all[s.UID] = coming{s.ResourceVersion, s.Status.DeepCopy()}
	a.mu.Unlock()
	a.ask(ctx, s)
}

// withdraw forgets a status that was not written.
func (a *ahead) withdraw(ctx context.Context, s *sandboxv1.Sandbox) {
	a.forget(s.UID)
	a.ask(ctx, s)
}

// ask asks for a look at the claim of a Sandbox.
func (a *ahead) ask(ctx context.Context, s *sandboxv1.Sandbox) {
	of := claimOf(s)
	if of == nil {
		return
	}
	select {
	case a.claims <- event.GenericEvent{Object: &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.Namespace, Name: of.Name}}}:
	case <-ctx.Done():
	}
}

// claimOf returns the claim that a Sandbox belongs to, or nil.
func claimOf(s *sandboxv1.Sandbox) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(s)
	if owner == nil || owner.Kind != "SandboxClaim" {
		return nil
	}
	return owner
}

// look gives a Sandbox of the cache its new status, as long as the cache has the version that gets it.
func (a *ahead) look(s *sandboxv1.Sandbox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch c, has := a.all[s.UID]; {
	case !has:
	case c.version == s.ResourceVersion:
		c.status.DeepCopyInto(&s.Status)
	default:
		delete(a.all, s.UID)
	}
}

// forget forgets the status of a Sandbox.
func (a *ahead) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, uid)
}
