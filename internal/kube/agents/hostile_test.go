package agents_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// TestHostile: what users write, and what runs in their sandboxes, costs others nothing.
func TestHostile(t *testing.T) {
	w := newWorld(t)
	w.again = time.Hour
	t.Run("silent sandboxes", w.silent)
	t.Run("other words", w.words)
	t.Run("a template after its pool", w.late)
	t.Run("a contested name", w.contested)
	t.Run("forged reports", w.forged)
	t.Run("forged sandboxes", w.usurped)
}

// silent has two namespaces full of sandboxes that never answer. A third one has its sandbox, and the
// others are told of.
func (w *world) silent(t *testing.T) {
	w.server = newServer()
	var asked sync.Map // namespaces, to how many of their sandboxes were asked
	w.server.answer = func(ctx context.Context, b *box) error {
		if b.tenant == "default" {
			return nil
		}
		n, _ := asked.LoadOrStore(b.tenant, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	w.guest = time.Hour
	stop := w.operator(w.server, nil)
	for _, namespace := range []string{"silent-a", "silent-b"} {
		w.namespace(namespace)
		for n := range 60 {
			s := sandbox(fmt.Sprintf("s%d", n))
			s.Namespace = namespace
			w.must(w.admin.Create(t.Context(), s))
		}
		w.until("the namespace has filled its places", func() bool {
			n, ok := asked.Load(namespace)
			return ok && n.(*atomic.Int64).Load() >= 16
		})
	}
	s := sandbox("heard")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	stop()
	w.guest = 20 * time.Millisecond
	stop = w.operator(w.server, nil)
	defer stop()
	one := sandbox("s0")
	one.Namespace = "silent-a"
	w.becomes(one, agents.ReasonError)
	for _, namespace := range []string{"silent-a", "silent-b"} {
		w.must(w.admin.DeleteAllOf(t.Context(), &sandboxv1.Sandbox{}, client.InNamespace(namespace)))
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.until("all sandboxes have ended", func() bool { return len(w.server.all()) == 0 })
}

// words has a sandbox that says something else at each look, which is no reason to look again.
func (w *world) words(t *testing.T) {
	w.server = newServer()
	var looks atomic.Int64
	w.server.answer = func(_ context.Context, b *box) error {
		if b.Metadata[agents.MetadataName] != "talks" {
			return nil
		}
		return turnstone.Errorf("test", turnstone.KindNotFound, "word", "%d", looks.Add(1))
	}
	defer w.operator(w.server, nil)()
	s := sandbox("talks")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonPodFailed)
	for n := range 5 {
		after := sandbox(fmt.Sprintf("listens-%d", n))
		w.must(w.admin.Create(t.Context(), after))
		w.becomes(after, sandboxv1.SandboxReasonDependenciesReady)
		w.must(w.admin.Delete(t.Context(), after))
	}
	if n := looks.Load(); n > 3 {
		t.Errorf("it was looked at %d times", n)
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.until("all sandboxes have ended", func() bool { return len(w.server.all()) == 0 })
}

// late makes a pool before its template.
func (w *world) late(t *testing.T) {
	w.server = newServer()
	defer w.operator(w.server, nil)()
	pool := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "default"},
		Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: "late"}}}
	w.must(w.admin.Create(t.Context(), pool))
	after := sandbox("meanwhile")
	w.must(w.admin.Create(t.Context(), after))
	w.becomes(after, sandboxv1.SandboxReasonDependenciesReady)
	tmpl := &extv1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "late", Namespace: "default"}}
	tmpl.Spec.SandboxBlueprint = sandbox("").Spec.SandboxBlueprint
	w.must(w.admin.Create(t.Context(), tmpl))
	w.until("the pool has its target", func() bool { return w.server.target("default/late") == 1 })
	_, err := w.server.SetPool(t.Context(), "default", "late", nil, 0, 0) // as a client with the scope may
	w.must(err)
	w.until("the pool has its target again", func() bool { return w.server.target("default/late") == 1 })
	w.must(w.admin.Delete(t.Context(), pool))
	w.must(w.admin.Delete(t.Context(), after))
	w.until("all sandboxes have ended", func() bool { return len(w.server.all()) == 0 })
}

// contested makes a Sandbox with the name of a claim when the operator is about to. The claim says so.
func (w *world) contested(t *testing.T) {
	w.server = newServer()
	var once sync.Once
	s, written := sandbox("contested"), make(chan error, 1)
	defer w.operator(w.server, func(o client.Object) error {
		// Of all writes, among them those about objects of the cases before: the first about this name.
		if _, is := o.(*sandboxv1.Sandbox); is && o.GetName() == s.Name {
			once.Do(func() { written <- w.admin.Create(t.Context(), s) })
		}
		return nil
	})()
	pool := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "contested", Namespace: "default"},
		Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: "contested"}}}
	tmpl := &extv1.SandboxTemplate{ObjectMeta: pool.ObjectMeta}
	tmpl.Spec.SandboxBlueprint = sandbox("").Spec.SandboxBlueprint
	claim := &extv1.SandboxClaim{ObjectMeta: pool.ObjectMeta,
		Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "contested"}}}
	none := int32(0)
	pool.Spec.Replicas = &none
	w.must(w.admin.Create(t.Context(), tmpl))
	w.must(w.admin.Create(t.Context(), pool))
	w.must(w.admin.Create(t.Context(), claim))
	w.becomes(claim, "AdoptionConflict")
	w.must(<-written)
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	for _, o := range []client.Object{claim, tmpl, pool, s} {
		w.must(w.admin.Delete(t.Context(), o))
	}
	w.until("all sandboxes have ended", func() bool { return len(w.server.all()) == 0 })
}

// forged has a namespace with reports of another one's sandbox, which goes on. They have a finalizer,
// and are deleted once.
func (w *world) forged(t *testing.T) {
	w.server = newServer()
	w.server.claim("sb_victim", time.Minute) // of default, and too young for a report
	const hold = "example.org/hold"
	w.namespace("a-forger") // which is looked at before default
	var all []*sandboxv1.Sandbox
	for n := range 20 {
		name := fmt.Sprintf("forged%d", n)
		if n == 0 {
			name = "victim"
		}
		s := sandbox("sb-" + name)
		s.Namespace, s.Finalizers = "a-forger", []string{hold}
		s.Labels = map[string]string{agents.ReportLabel: "true"}
		s.Annotations = map[string]string{agents.ClassAnnotation: "turnstone-report", agents.SandboxAnnotation: "sb_" + name}
		w.must(w.admin.Create(t.Context(), s))
		all = append(all, s)
	}
	w.follow = &agents.Follow{Every: 50 * time.Millisecond, Age: time.Hour, Rate: 20}
	defer func() { w.follow = nil }()
	defer w.operator(w.server, nil)()
	w.until("all forged reports were deleted", func() bool {
		for _, s := range all {
			w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s))
			if s.DeletionTimestamp.IsZero() {
				return false
			}
		}
		return true
	})
	for _, s := range all {
		if n := w.writes(s.Name); n > 2 { // the cache may not have the first one yet
			t.Errorf("%s was deleted %d times", s.Name, n)
		}
		s.Finalizers = nil
		w.must(w.admin.Update(t.Context(), s))
	}
	if len(w.server.all()) != 1 {
		t.Error("a report of another namespace has ended a sandbox")
	}
}
