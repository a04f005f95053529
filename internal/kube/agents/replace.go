package agents

import (
	"context"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/remote"
)

// Reasons of conditions and events about nodes.
const (
	// ReasonNodeLost is that of an object whose sandbox is on a node that does not answer.
	ReasonNodeLost = "NodeLost"
	// ReasonSandboxLost is that of an object whose sandbox is gone with its node, and gets another one.
	ReasonSandboxLost = "SandboxLost"
	// ReasonDraining, ReasonReplaced and ReasonBack are of events.
	ReasonDraining = "NodeDraining"
	ReasonReplaced = "SandboxReplaced"
	ReasonBack     = "NodeBack"
)

// usualAway is how long Kubernetes leaves pods on a node that does not answer.
const usualAway = 5 * time.Minute

// ended is how long a node is waited for that said that it ends: its program may start again, and what
// does not run in a pod outlives it.
const ended = time.Minute

// A loss is why a sandbox is not used any longer.
type loss struct {
	reason, why string
	from        time.Time // when another one is made; zero: at once
	never       bool      // it is waited for
	untrusted   bool      // perhaps its node obeys nobody
}

// lossOf returns why an object's sandbox is not used, or nil. A sandbox that is being created is asked for
// again at its node, which ends it if the node is lost.
func (r *sandboxes) lossOf(ctx context.Context, s *sandboxv1.Sandbox, b *v1.Sandbox) *loss {
	switch b.State {
	case v1.SandboxState_SANDBOX_STATE_FAILED:
		if b.Reason != v1.SandboxReason_SANDBOX_REASON_NODE_LOST && b.Reason != v1.SandboxReason_SANDBOX_REASON_HOLDER_DIED {
			return nil // its own end
		}
		return &loss{reason: ReasonSandboxLost, why: "the sandbox " + b.SandboxId + " on node " + b.Node + " has ended: " +
			remote.ReasonText(b.Reason), from: b.Created.AsTime().Add(shortest(attemptOf(b)))}
	case v1.SandboxState_SANDBOX_STATE_STOPPED:
		return nil
	}
	n := r.fleet.node(ctx, b.Node)
	if n.Untrusted != "" {
		return &loss{reason: ReasonSandboxLost, untrusted: true,
			why: "the sandbox " + b.SandboxId + " is on node " + b.Node + ", which is not trusted: " + n.Untrusted}
	}
	if !b.NodeLost.IsValid() || b.State == v1.SandboxState_SANDBOX_STATE_CREATING {
		return nil
	}
	since := b.NodeLost.AsTime()
	l := &loss{reason: ReasonNodeLost, why: "node " + b.Node + " of the sandbox " + b.SandboxId + " has not answered since " +
		since.UTC().Format(time.RFC3339)}
	away, never := tolerated(&s.Spec.PodTemplate.Spec, r.o.away())
	if n.Draining { // it was told to end, as a drained node of Kubernetes, which waits for no toleration
		l.why += ", and said before that it ends"
		if never = false; away > ended {
			away = ended
		}
	}
	l.from, l.never = since.Add(away), never
	return l
}

// attemptOf returns the number of the attempt that made a sandbox, as far as its metadata say so.
func attemptOf(b *v1.Sandbox) int {
	n, err := strconv.Atoi(b.Metadata[MetadataAttempt])
	if err != nil || n < 0 || n > 1<<30 {
		return 0
	}
	return n
}

// shortest returns how long a sandbox has to live that some have come before, so that another one is made
// at once when it is lost.
func shortest(before int) time.Duration {
	if before == 0 {
		return 0
	}
	return min(minDelay<<min(before-1, 10), maxDelay)
}

// replace removes the sandboxes of an object of which the newest is lost, once it is time, and returns
// whether another one is to be made now. Otherwise the object says why it waits, for how long.
func (r *sandboxes) replace(ctx context.Context, s *sandboxv1.Sandbox, all []*v1.Sandbox, b *v1.Sandbox, l *loss) (
	wait time.Duration, now bool, err error) {
	if wait = time.Until(l.from); l.never || wait > 0 {
		text := l.why
		if l.never {
			wait = r.o.again()
		} else {
			text += "; another one is made at " + l.from.UTC().Format(time.RFC3339)
		}
		r.lost(s, l.reason, text)
		return wait, false, nil
	}
	r.lost(s, l.reason, l.why)
	r.followers.end(key(s))
	for _, one := range append(others(all, b), b) {
		err := r.o.Server.Delete(ctx, s.Namespace, one.SandboxId)
		if err != nil && !l.untrusted {
			return 0, false, err
		} else if err != nil { // each later look tries it again
			r.o.Log.Warn("a sandbox on a node that is not trusted was not removed", "sandbox", one.SandboxId, "error", err)
		}
	}
	r.attempts.set(s.UID, max(r.attempts.failed(s.UID), attemptOf(b)+1))
	r.tell.Eventf(s, nil, corev1.EventTypeWarning, ReasonReplaced, "Replace", "%s", clip(l.why+"; another one takes its "+
		"place, without what was in it"))
	return 0, true, nil
}

// lost says that the sandbox cannot be used.
func (r *sandboxes) lost(s *sandboxv1.Sandbox, reason, why string) {
	if s.Spec.OperatingMode == sandboxv1.SandboxOperatingModeSuspended {
		return // it is not ready anyway
	}
	set(&s.Status.Conditions, s.Generation, sandboxv1.SandboxConditionReady, false, reason, why)
}

// make creates the sandbox of an object that has none. One that was removed is not the object's any more,
// whoever removed it.
func (r *sandboxes) make(ctx context.Context, s *sandboxv1.Sandbox, want *v1.CreateSandboxRequest) (
	b *v1.Sandbox, err error) {
	for range maxAttempts {
		if b, err = r.create(ctx, s, want); err != nil || !b.GetRemoved() {
			return b, err
		}
		r.attempts.set(s.UID, max(r.attempts.failed(s.UID), attemptOf(b))+1)
	}
	return nil, err
}

// removeOthers removes the sandboxes of an object but the one that is used: those of a node that came back.
func (r *sandboxes) removeOthers(ctx context.Context, s *sandboxv1.Sandbox, all []*v1.Sandbox, b *v1.Sandbox) {
	for _, one := range others(all, b) {
		if err := r.o.Server.Delete(ctx, s.Namespace, one.SandboxId); err != nil {
			r.o.Log.Warn("an earlier sandbox of an object was not removed", "sandbox", one.SandboxId, "error", err)
		}
	}
}

// tellEnds writes events about what became of an object's sandbox, which its new status says.
func (r *sandboxes) tellEnds(s *sandboxv1.Sandbox, was *sandboxv1.SandboxStatus) {
	event := func(kind, reason, text string) {
		r.tell.Eventf(s, nil, kind, reason, "Follow", "%s", clip(text))
	}
	old, now := ready(was.Conditions), ready(s.Status.Conditions)
	switch {
	case now.Reason == ReasonNodeLost && old.Reason != ReasonNodeLost:
		event(corev1.EventTypeWarning, ReasonNodeLost, now.Message)
	case old.Reason == ReasonNodeLost && now.Status == metav1.ConditionTrue && s.Status.NodeName == was.NodeName:
		event(corev1.EventTypeNormal, ReasonBack, "node "+s.Status.NodeName+" answers again: "+now.Message)
	case now.Reason == sandboxv1.SandboxReasonExpired && old.Reason != sandboxv1.SandboxReasonExpired:
		event(corev1.EventTypeNormal, now.Reason, "the sandbox has ended: "+now.Message)
	}
	kind := string(sandboxv1.SandboxConditionFinished)
	end := meta.FindStatusCondition(s.Status.Conditions, kind)
	if end == nil || end.Status != metav1.ConditionTrue || meta.IsStatusConditionTrue(was.Conditions, kind) {
		return
	}
	how := corev1.EventTypeNormal
	if end.Reason == sandboxv1.SandboxReasonPodFailed {
		how = corev1.EventTypeWarning
	}
	event(how, end.Reason, end.Message)
}
