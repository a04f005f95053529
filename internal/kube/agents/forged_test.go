package agents_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// forge makes a sandbox that says of itself what the sandbox of an object says.
func (s *server) forge(id string, of *sandboxv1.Sandbox, foreign bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &box{tenant: of.Namespace, foreign: foreign}
	proto.Merge(&b.Sandbox, &v1.Sandbox{SandboxId: id, Name: of.Name, Node: "n1",
		State:   v1.SandboxState_SANDBOX_STATE_READY,
		Created: timestamppb.New(time.Now().Add(time.Hour)), // newer than any other
		Metadata: map[string]string{agents.MetadataUID: string(of.UID), agents.MetadataCluster: "test",
			agents.MetadataName: of.Name, agents.MetadataNamespace: of.Namespace}})
	s.boxes[id] = b
}

// usurped has sandboxes with the metadata of an object: one that another client has made before the
// object had any, one that an earlier version of the operator has made, and one that comes later. The
// object has a sandbox of its own, and the others are left alone, also when it ends.
func (w *world) usurped(t *testing.T) {
	w.server = newServer()
	s := sandbox("usurped")
	w.must(w.admin.Create(t.Context(), s))
	w.server.forge("sb_forged", s, true)
	w.server.forge("sb_earlier", s, false)
	w.again = time.Second
	defer func() { w.again = time.Hour }()
	defer w.operator(w.server, nil)()
	own := func() (id string, main int) {
		for _, b := range w.server.all() {
			if b.ManagedBy == agents.Managed("test", s.Namespace, s.Name, string(s.UID)) {
				id, main = b.SandboxId, len(b.main)
			}
		}
		return id, main
	}
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	id, main := own()
	if c := w.condition(s, "Ready"); id == "" || main != 1 || !strings.Contains(c.Message, id) {
		t.Errorf("the object's sandbox is %q, with %d processes: %+v", id, main, c)
	}
	w.server.forge("sb_later", s, true)
	before := s.DeepCopy()
	s.Spec.OperatingMode = sandboxv1.SandboxOperatingModeSuspended
	w.must(w.admin.Patch(t.Context(), s, client.MergeFrom(before)))
	w.becomes(s, sandboxv1.SandboxReasonSuspended)
	if again, _ := own(); again != id {
		t.Errorf("the object's sandbox is %q, not %q", again, id)
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.becomes(s, "gone")
	left := w.server.all()
	for _, b := range left {
		if b.Paused || b.main != nil || b.ManagedBy != "" {
			t.Errorf("the operator has touched %v", &b.Sandbox)
		}
	}
	if len(left) != 3 {
		t.Errorf("%d sandboxes of others are left, not 3", len(left))
	}
	// Another object of the same name is another object, whoever has sandboxes of the old one.
	again := sandbox("usurped")
	w.server.forge("sb_old", s, true)
	w.must(w.admin.Create(t.Context(), again))
	w.becomes(again, sandboxv1.SandboxReasonDependenciesReady)
	w.must(client.IgnoreNotFound(w.admin.Delete(t.Context(), again)))
	w.becomes(again, "gone")
}
