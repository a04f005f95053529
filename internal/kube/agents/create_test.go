package agents_test

import (
	"strings"
	"testing"

	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// TestCreationFails: an object says why it has no sandbox, and gets one when the reason is gone, although
// the server makes nothing for the key of an attempt that failed.
func TestCreationFails(t *testing.T) {
	w := newWorld(t)
	w.server.fails = func(r *v1.CreateSandboxRequest) (bool, error) {
		if r.GetImage() != "registry.example/wrong" {
			return false, nil
		}
		return false, turnstone.Errorf("test", turnstone.KindNotFound, "image registry.example/wrong",
			"does not exist").WithHint("check its name")
	}
	stop := w.operator(w.server, nil)
	s := sandbox("typo")
	s.Spec.PodTemplate.Spec.Containers[0].Image = "registry.example/wrong"
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, agents.ReasonError)
	if text := w.condition(s, "Ready").Message; !strings.Contains(text, "does not exist (check its name)") {
		t.Errorf("the object says %q", text)
	}
	stop()
	w.operator(w.server, nil) // which knows of no attempt
	s.Spec.PodTemplate.Spec.Containers[0].Image = "registry.example/right"
	w.must(w.admin.Update(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	if all := w.server.all(); len(all) != 1 || all[0].request.Metadata[agents.MetadataAttempt] == "0" {
		t.Errorf("the server has %v", all)
	}
}

// TestCreationIsRepeated: a sandbox whose creation had no answer is asked for again, and is made once.
func TestCreationIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.server.fails = func(*v1.CreateSandboxRequest) (bool, error) {
		return true, turnstone.Errorf("test", turnstone.KindUnavailable, "node n1", "does not answer")
	}
	w.operator(w.server, nil)
	s := sandbox("again")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	if all := w.server.all(); len(all) != 1 {
		t.Errorf("%d sandboxes were made", len(all))
	}
	w.must(w.admin.Delete(t.Context(), s, client.GracePeriodSeconds(0)))
	w.becomes(s, "gone")
}
