package agents_test

import (
	"strings"
	"testing"
	"time"

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

// TestCausesThatPass: while a sandbox cannot be made, its object is not ready and never Finished, which clients take for
// the end; when the cause is over it gets one sandbox, without a hand.
func TestCausesThatPass(t *testing.T) {
	failed := func(kind turnstone.Kind, what, why string) error {
		return turnstone.Errorf("test", kind, what, "%s", why)
	}
	fails := func(wait bool, err error) func(*server) {
		return func(s *server) {
			s.fails = func(*v1.CreateSandboxRequest) (bool, error) {
				if s.over.Load() {
					return false, nil
				}
				return wait, err
			}
		}
	}
	silent := failed(turnstone.KindUnavailable, "registry.example", "does not answer")
	away := func(err error) func(*server) {
		return func(s *server) {
			s.step = func(string, bool) error {
				if s.over.Load() {
					return nil
				}
				return err
			}
		}
	}
	// What the server keeps of a creation that it has given up.
	givenUp := func(s *server) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.boxes {
			if b.State == v1.SandboxState_SANDBOX_STATE_CREATING {
				b.State, b.Reason = v1.SandboxState_SANDBOX_STATE_FAILED, v1.SandboxReason_SANDBOX_REASON_CREATE_FAILED
			}
		}
		for k := range s.keys {
			s.keys[k] = ""
		}
	}
	for name, x := range map[string]struct {
		begins func(s *server)
		then   func(s *server) // while the cause lasts, after the object has said that it is not ready
	}{
		"registry away, and the server waits":    {begins: fails(true, silent)},
		"registry away, and the server gives up": {begins: fails(true, silent), then: givenUp},
		"registry answers 5xx":                   {begins: fails(false, silent)},
		"server restarted meanwhile": {begins: fails(true, silent), then: func(s *server) {
			s.mu.Lock()
			defer s.mu.Unlock()
			clear(s.boxes)
			clear(s.keys)
		}},
		"a name that does not resolve": {begins: fails(false, failed(turnstone.KindTimeout, "registry.example", "was not found in time"))},
		"disk full":                    {begins: fails(false, failed(turnstone.KindExhausted, "node n1", "has no room"))},
		"pool empty":                   {begins: fails(false, failed(turnstone.KindExhausted, "pool p", "has none left"))},
		"quota":                        {begins: func(s *server) { s.quota = map[string]int{"default": 0} }},
		"no node":                      {begins: fails(false, failed(turnstone.KindUnavailable, "nodes", "do not answer"))},
		"token ended":                  {begins: away(failed(turnstone.KindDenied, "the token", "has ended"))},
		"server away":                  {begins: away(failed(turnstone.KindUnavailable, "the server", "is away"))},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			x.begins(w.server)
			w.operator(w.server, nil)
			s := sandbox("cause")
			w.must(w.admin.Create(t.Context(), s))
			w.becomes(s, agents.ReasonError)
			if x.then != nil {
				x.then(w.server)
				looks := w.server.lists.Load()
				w.until("the object is looked at again", func() bool { return w.server.lists.Load() > looks+1 })
			}
			if c := w.condition(s, string(sandboxv1.SandboxConditionFinished)); c.Status == "True" {
				t.Errorf("the object says that it is finished: %+v", c)
			}
			w.server.mu.Lock()
			w.server.quota = nil
			w.server.mu.Unlock()
			w.server.over.Store(true)
			w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
			ready := 0
			for _, b := range w.server.all() {
				if b.State == v1.SandboxState_SANDBOX_STATE_READY {
					ready++
				}
			}
			if ready != 1 {
				t.Errorf("%d sandboxes are ready: %v", ready, w.server.all())
			}
		})
	}
}

// TestCreationIsRepeated: a sandbox whose creation had no answer is asked for again, and is made once.
func TestCreationIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.server.fails = func(*v1.CreateSandboxRequest) (bool, error) {
		if w.server.over.Swap(true) {
			return false, nil
		}
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

// TestCreationTakesLong: an object whose sandbox takes long has the reason in its status, as its claim has, and an event,
// until the sandbox is there.
func TestCreationTakesLong(t *testing.T) {
	w := newWorld(t)
	w.quiet = time.Millisecond
	hold := make(chan struct{})
	w.server.holds = map[string]chan struct{}{"default": hold}
	w.operator(w.server, nil)
	claim := w.pooled("takes-long")
	w.must(w.admin.Create(t.Context(), claim))
	s := &sandboxv1.Sandbox{ObjectMeta: claim.ObjectMeta}
	for _, o := range []client.Object{s, claim} {
		w.becomes(o, sandboxv1.SandboxReasonDependenciesNotReady)
		if c := w.condition(o, "Ready"); !strings.Contains(c.Message, "is being created") {
			t.Errorf("%T: %+v", o, c)
		}
	}
	w.told(s, agents.ReasonCreating)
	close(hold)
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.becomes(claim, sandboxv1.SandboxReasonDependenciesReady)
	if w.server.madeOf() != 1 {
		t.Errorf("%d sandboxes were made", w.server.madeOf())
	}
}
