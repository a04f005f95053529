package agents_test

import (
	"os"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// leaseName is the Lease of the operators that are processes.
const leaseName = "operators"

// held are the creations that the first operator to ask for them has to wait for.
type held struct {
	mu    sync.Mutex
	who   string         // has asked
	asked map[string]int // creations of others that are held, by the names of the objects
	names map[string]bool
	open  chan struct{}
}

// before lets the first operator that creates a sandbox of one of the names wait, with all of them.
func (h *held) before(operator, method string, m *message) {
	if method != "create" {
		return
	}
	h.mu.Lock()
	holds := false
	r := &v1.CreateSandboxRequest{}
	_ = proto.Unmarshal(m.Request, r) // its answer says so
	if name := r.Metadata[agents.MetadataName]; h.names[name] && (h.who == "" || h.who == operator) {
		h.who, holds = operator, true
		h.asked[name]++
	}
	h.mu.Unlock()
	if holds {
		<-h.open
	}
}

// all reports whether an operator waits for all of them.
func (h *held) all() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.asked) == len(h.names)
}

// leaders runs two operators, of which one leads. It is stopped while it creates sandboxes, for longer
// than its lease, and goes on after the other one has done its work: nothing is made twice, nothing comes
// back that was removed meanwhile, and what the other one wrote stays. Then the leader is killed.
func (w *world) leaders(t *testing.T) {
	h := &held{asked: map[string]int{}, names: map[string]bool{"kept": true, "removed": true}, open: make(chan struct{})}
	config, err := w.cluster.Kubeconfig("turn-operator", "system:masters")
	w.must(err)
	url := w.serve(h.before)
	w.server.mu.Lock()
	created := w.server.created
	w.server.mu.Unlock()
	operators := map[string]*os.Process{"one": w.process("one", config, url), "two": w.process("two", config, url)}
	w.made(t, "first")

	kept, removed := plain("default", "kept"), plain("default", "removed")
	w.must(w.admin.Create(t.Context(), kept))
	w.must(w.admin.Create(t.Context(), removed))
	w.until("the leader creates both", h.all)
	slow := operators[h.who]
	w.must(slow.Signal(syscall.SIGSTOP))
	w.becomes(kept, sandboxv1.SandboxReasonDependenciesReady) // the other one leads
	w.becomes(removed, sandboxv1.SandboxReasonDependenciesReady)
	w.must(w.admin.Delete(t.Context(), removed))
	w.becomes(removed, "gone")

	w.must(slow.Signal(syscall.SIGCONT))
	close(h.open) // its calls are made only now
	w.made(t, "second")
	leader := w.leader()
	w.must(operators[leader].Kill())
	w.made(t, "third") // by the one that was slow: perhaps before it knows that it does not lead
	w.until("the other one leads", func() bool { l := w.leader(); return l != "" && l != leader })
	w.made(t, "fourth")
	w.server.mu.Lock()
	n := w.server.created - created
	w.server.mu.Unlock()
	if n != 6 {
		t.Errorf("%d sandboxes were made for six objects", n)
	}
	if n := w.writes("kept"); n != 2 { // the slow one took it, and the other one wrote its status
		t.Errorf("the operators wrote %d times about an object, not 2", n)
	}
	for _, b := range w.server.all() {
		if b.Metadata[agents.MetadataName] == "removed" {
			t.Error("the sandbox that was removed is there again")
		}
	}
}

// made creates a Sandbox and waits until it is ready.
func (w *world) made(t *testing.T, name string) {
	t.Helper()
	s := plain("default", name)
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
}

// leader returns the name of the operator that has the lease.
func (w *world) leader() string {
	w.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName, Namespace: "default"}}
	w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(l), l))
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}
