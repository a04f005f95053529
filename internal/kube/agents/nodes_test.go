package agents_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// place returns the first node that may be used. The caller holds mu.
func (s *server) place() string {
	for _, n := range s.nodes {
		if !n.Lost && !n.Draining && n.Untrusted == "" {
			return n.Name
		}
	}
	return "n1"
}

// seen is what the server says of a sandbox. The caller holds mu.
func (s *server) seen(b *box) *v1.Sandbox {
	out := proto.Clone(&b.Sandbox).(*v1.Sandbox)
	for _, n := range s.nodes {
		if n.Name == b.Node && n.Lost {
			out.NodeLost = timestamppb.New(s.since)
		}
	}
	return out
}

// Fleet implements agents.Nodes.
func (s *server) Fleet(context.Context) ([]agents.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.nodes), nil
}

// set sets the nodes; since is for how long the lost ones are away.
func (s *server) set(since time.Duration, nodes ...agents.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.since = nodes, time.Now().Add(-since)
}

// boxOf returns the sandbox of an object; the test fails if it has several.
func (w *world) boxOf(o client.Object) *box {
	w.Helper()
	var all []*box
	for _, b := range w.server.all() {
		if b.Metadata[agents.MetadataUID] == string(o.GetUID()) {
			all = append(all, b)
		}
	}
	if len(all) != 1 {
		w.Fatalf("%s has the sandboxes %v", o.GetName(), all)
	}
	return all[0]
}

// told waits until an object has an event with a reason.
func (w *world) told(o client.Object, reason string) {
	w.Helper()
	w.until(o.GetName()+" has the event "+reason, func() bool {
		all := &eventsv1.EventList{}
		w.must(w.admin.List(w.Context(), all, client.InNamespace(o.GetNamespace())))
		return slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
			return e.Regarding.UID == o.GetUID() && e.Reason == reason && e.Note != ""
		})
	})
}

// TestNodes: what becomes of objects whose nodes are lost, drain, come back or are not trusted.
func TestNodes(t *testing.T) {
	w := newWorld(t)
	one, two := agents.Node{Name: "n1"}, agents.Node{Name: "n2"}
	lost := func(n agents.Node) agents.Node { n.Lost = true; return n }
	w.server.set(0, one, two)
	w.operator(w.server, nil)
	patient := plain("default", "patient")
	patient.Spec.PodTemplate.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	deleted, s := plain("default", "deleted"), plain("default", "moves")
	objects := []*sandboxv1.Sandbox{patient, deleted, s}
	for _, o := range objects {
		w.must(w.admin.Create(t.Context(), o))
		w.becomes(o, sandboxv1.SandboxReasonDependenciesReady)
	}
	first := w.boxOf(s).SandboxId

	w.server.set(time.Second, lost(one), two) // it may be back soon
	for _, o := range objects {
		w.becomes(o, agents.ReasonNodeLost)
		w.told(o, agents.ReasonNodeLost)
	}
	w.must(w.admin.Delete(t.Context(), deleted))
	w.becomes(deleted, "gone")
	w.server.set(0, one, two)
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.told(s, agents.ReasonBack)
	if b := w.boxOf(s); b.SandboxId != first || s.Status.NodeName != "n1" {
		t.Errorf("the node is back, and the sandbox is %v", b)
	}

	w.server.set(time.Hour, lost(one), two) // it is away for long
	w.moved(s, first, "n2")
	w.becomes(patient, agents.ReasonNodeLost)
	if b := w.boxOf(patient); b.Node != "n1" || strings.Contains(ready(patient).Message, "another one is made") {
		t.Errorf("%v is replaced, and its pod waits for ever: %s", b, ready(patient).Message)
	}

	second := w.boxOf(s).SandboxId
	w.server.foreign(second, true) // the node removes nothing
	w.server.set(0, one, agents.Node{Name: "n2", Untrusted: "its key is unknown"})
	w.until("it is on another node", func() bool {
		return w.condition(s, "Ready").Reason == sandboxv1.SandboxReasonDependenciesReady && s.Status.NodeName == "n1"
	})
	w.server.foreign(second, false)
	w.until("the first one is removed", func() bool { return !w.server.has(second) })
	w.moved(s, second, "n1")

	third := w.boxOf(s).SandboxId
	w.server.set(0, agents.Node{Name: "n1", Draining: true}, two)
	w.told(s, agents.ReasonDraining)
	if b := w.boxOf(s); b.SandboxId != third {
		t.Errorf("a node drains, and the sandbox is replaced by %v before it has ended", b)
	}
	w.server.set(2*time.Minute, agents.Node{Name: "n1", Draining: true, Lost: true}, two)
	w.moved(s, third, "n2")

	fourth := w.boxOf(s).SandboxId
	w.server.ends(fourth, v1.SandboxReason_SANDBOX_REASON_HOLDER_DIED)
	w.server.aged(fourth) // one that lived for a moment would be waited for
	w.moved(s, fourth, "n2")

	fifth := w.boxOf(s).SandboxId
	w.server.ends(fifth, v1.SandboxReason_SANDBOX_REASON_MACHINE_DIED) // by its own fault
	w.becomes(s, sandboxv1.SandboxReasonPodFailed)
	w.told(s, sandboxv1.SandboxReasonPodFailed)
	if b := w.boxOf(s); b.SandboxId != fifth {
		t.Errorf("it is replaced by %v", b)
	}
}

// foreign says whether a sandbox obeys another client key alone.
func (s *server) foreign(id string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[id].foreign = is
}

func (s *server) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[id] != nil
}

// ends ends a sandbox.
func (s *server) ends(id string, why v1.SandboxReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[id].State, s.boxes[id].Reason = v1.SandboxState_SANDBOX_STATE_FAILED, why
}

// aged makes a sandbox an hour older.
func (s *server) aged(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[id].Created = timestamppb.New(time.Now().Add(-time.Hour))
}

// ready returns the condition Ready.
func ready(s *sandboxv1.Sandbox) (c struct{ Message string }) {
	for _, x := range s.Status.Conditions {
		if x.Type == string(sandboxv1.SandboxConditionReady) {
			c.Message = x.Message
		}
	}
	return c
}

// moved waits until an object has another sandbox than before, on a node, and is ready.
func (w *world) moved(s *sandboxv1.Sandbox, before, node string) {
	w.Helper()
	w.until(s.Name+" has another sandbox on "+node, func() bool {
		c := w.condition(s, "Ready")
		return c.Reason == sandboxv1.SandboxReasonDependenciesReady && !strings.Contains(c.Message, before+" ") &&
			s.Status.NodeName == node
	})
	if b := w.boxOf(s); b.SandboxId == before || b.Node != node {
		w.Errorf("the sandbox is %v", b)
	}
	w.told(s, agents.ReasonReplaced)
}

// TestNotTakenAgain: an object whose sandbox another one has removed gets a new one, also from an operator
// that is new, at a server that answers a repeated creation with the removed sandbox.
func TestNotTakenAgain(t *testing.T) {
	w := newWorld(t)
	w.server.set(0, agents.Node{Name: "n1"})
	w.server.answersRemoved = true
	stop := w.operator(w.server, nil)
	s := plain("default", "taken")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	for i := range 2 {
		first := w.boxOf(s).SandboxId
		stop()
		w.must(w.server.Delete(t.Context(), "default", first))
		stop = w.operator(w.server, nil)
		w.until(fmt.Sprint("there is another sandbox, time ", i), func() bool {
			c := w.condition(s, "Ready")
			return c.Reason == sandboxv1.SandboxReasonDependenciesReady && !strings.Contains(c.Message, first+" ")
		})
	}
}
