package agents

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A teller writes events about objects. Its zero value writes none.
type teller struct{ to events.EventRecorder }

func (t teller) tell(o client.Object, kind, reason, action, message string) {
	if t.to != nil {
		t.to.Eventf(o, nil, kind, reason, action, "%s", clip(message))
	}
}

// claim tells that a claim has become ready, or that it no longer is, and why.
func (t teller) claim(c *extv1.SandboxClaim, was, is metav1.Condition) {
	switch {
	case was.Status == is.Status && was.Reason == is.Reason, is.Reason == "":
	case is.Status == metav1.ConditionTrue:
		t.tell(c, corev1.EventTypeNormal, "Ready", "Claim", is.Message)
	case is.Reason == extv1.ClaimExpiredReason || is.Reason == reasonNotReady:
		t.tell(c, corev1.EventTypeNormal, is.Reason, "Claim", is.Message)
	default:
		t.tell(c, corev1.EventTypeWarning, is.Reason, "Claim", is.Message)
	}
}

// Reasons of a pool that has fewer sandboxes than it asks for, and of one that has all again.
const (
	poolFull     = "Filled"
	poolFilling  = "" // it goes on
	poolInvalid  = ReasonInvalid
	poolTemplate = reasonNoTemplate
	poolQuota    = "QuotaExceeded"
	poolRoom     = "NoRoom"
	poolError    = ReasonError
)

// short says why a pool has fewer sandboxes than replicas. One that is made is no reason yet.
func short(replicas int32, w Waiting) (reason, message string) {
	has := w.Ready + w.Making
	switch {
	case w.Ready >= replicas:
		return poolFull, fmt.Sprintf("%d sandboxes wait", w.Ready)
	case w.Target < replicas && has >= w.Target:
		return poolQuota, fmt.Sprintf("%d of %d sandboxes may wait: quota.pool of the tenant bounds all of its pools",
			w.Target, replicas)
	case w.Making > 0:
		return poolFilling, ""
	}
	return poolRoom, fmt.Sprintf("%d of %d sandboxes wait, and none is being made: the nodes build the template or pull the image, "+
		"or cannot (see their logs), or have no room for more within node.pool_memory", w.Ready, replicas)
}
