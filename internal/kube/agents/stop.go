package agents

import (
	"context"
	"time"

	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// stopTime is what the end of a container may take beside its grace.
const stopTime = 5 * time.Second

// stopping ends the container of an object that goes since then, as a kubelet does: by its hook and TERM. It returns
// how long that may take yet, and 0 when it is over: what ends late, or does not answer, ends with its sandbox.
func (r *sandboxes) stopping(ctx context.Context, s *sandboxv1.Sandbox, since time.Time) time.Duration {
	_, m, err := r.o.convert(s)
	if err != nil || !m.process() && len(m.Inits) == 0 {
		return 0
	}
	left := time.Until(since.Add(m.Grace + stopTime))
	if left <= 0 {
		return 0
	}
	all, err := r.o.Server.List(ctx, s.Namespace, r.o.ours(s))
	if err != nil {
		return 0 // the removal says why
	}
	b := newest(all)
	if b == nil || b.Paused || r.lossOf(ctx, s, b) != nil ||
		b.State != v1.SandboxState_SANDBOX_STATE_READY && b.State != v1.SandboxState_SANDBOX_STATE_RUNNING {
		return 0
	}
	m.Stop = true
	if r.followers.stopped(s, b.SandboxId, m) {
		return 0
	}
	return left
}
