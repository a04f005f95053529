package controller

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// uses makes the node report what a sandbox has used.
func (n *fakeNode) uses(id string, cpu time.Duration, out uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.sandboxes[id]
	x.Sandbox.Used = &v1.Used{Cpu: durationpb.New(cpu), BytesIn: 2 * out, BytesOut: out}
	n.tell(evChanged, x)
}

// TestUsed: what nodes measure counts once, however often it is reported, over restarts, and for
// the session and the tenant that used it.
func TestUsed(t *testing.T) {
	w := newWorld(t, "n1")
	c := w.as(with("acme"))
	id := w.create(c, &v1.CreateSandboxRequest{IdempotencyKey: "k", ContextId: "work"}).Sandbox.SandboxId
	usage := func(c *callerClient, session string) *v1.GetUsageResponse {
		t.Helper()
		must(t, w.flushUsage(t.Context()))
		a, err := c.turns.GetUsage(t.Context(), ask(&v1.GetUsageRequest{Session: session}))
		must(t, err)
		return a.Msg
	}
	reports := func(cpu time.Duration, out uint64) {
		t.Helper()
		w.nodes[0].uses(id, cpu, out)
		w.eventually("the report is recorded", func() bool {
			return usage(c, "").GetUsed().GetBytesOut() == out
		})
	}
	reports(3*time.Second, 100)
	reports(5*time.Second, 700)
	w.restart() // the node lists it again
	c, other := w.as(with("acme")), w.as(with("other"))
	w.nodes[0].uses(id, 4*time.Second, 600) // older
	reports(6*time.Second, 800)
	got := usage(c, "").GetUsed()
	if got.GetCpu().AsDuration() != 6*time.Second || got.GetBytesIn() != 1600 {
		t.Errorf("%v", got)
	}
	if u := usage(other, "").GetUsed(); u.GetBytesOut() != 0 {
		t.Errorf("another tenant used %v", u)
	}
}
