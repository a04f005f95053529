package agents_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// Live implements agents.Reports.
func (s *server) Live(ctx context.Context, namespace string) (all []*v1.Sandbox, err error) {
	return s.List(ctx, namespace, "")
}

// End implements agents.Reports.
func (s *server) End(ctx context.Context, namespace, id string) error {
	if s.noEnd.Load() {
		return errCrash
	}
	return s.Delete(ctx, namespace, id)
}

// claim makes a sandbox as a client of the server would, without the API server.
func (s *server) claim(id string, age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &box{tenant: "default"}
	proto.Merge(&b.Sandbox, &v1.Sandbox{SandboxId: id, Node: "n1", Template: "base",
		State: v1.SandboxState_SANDBOX_STATE_READY, Created: timestamppb.New(time.Now().Add(-age))})
	s.boxes[id] = b
}

// ended ends a sandbox, or all.
func (s *server) ended(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.boxes, id); id == "" {
		clear(s.boxes)
	}
}

// reports returns the names of the reports that are there.
func (w *world) reports() map[string]*sandboxv1.Sandbox {
	w.Helper()
	list, all := &sandboxv1.SandboxList{}, map[string]*sandboxv1.Sandbox{}
	w.must(w.admin.List(w.Context(), list, client.HasLabels{agents.ReportLabel}))
	for n := range list.Items {
		all[list.Items[n].Name] = &list.Items[n]
	}
	return all
}

// TestFollow: what is claimed at the server has a report afterwards, with two writes in all.
func TestFollow(t *testing.T) {
	w := newWorld(t)
	w.follow = &agents.Follow{Every: 50 * time.Millisecond, Age: time.Hour, Rate: 1000}
	w.operator(w.server, nil)
	own := sandbox("own")
	w.must(w.admin.Create(t.Context(), own))
	w.becomes(own, sandboxv1.SandboxReasonDependenciesReady)
	w.server.claim("sb_young", time.Minute)
	w.server.claim("sb_one", 2*time.Hour)
	w.server.claim("sb_two", 2*time.Hour)
	w.until("both are reported", func() bool { return len(w.reports()) == 2 })
	one := w.reports()["sb-one"]
	if one == nil || one.Annotations[agents.SandboxAnnotation] != "sb_one" ||
		one.Annotations[agents.NodeAnnotation] != "n1" || len(one.Finalizers) != 0 {
		t.Fatalf("the report is %+v", one)
	}
	w.server.ended("sb_two")
	w.until("the report of what has ended is gone", func() bool { return len(w.reports()) == 1 })
	w.must(w.admin.Delete(t.Context(), one))
	w.until("the sandbox of the deleted report has ended", func() bool { return len(w.server.all()) == 2 })
	w.must(w.admin.Delete(t.Context(), own))
	w.becomes(own, "gone")
	for name, most := range map[string]int{"sb-young": 0, "sb-one": 1, "sb-two": 2} {
		if n := w.writes(name); n != most {
			t.Errorf("%s cost %d writes, not %d", name, n, most)
		}
	}
	t.Run("refused", w.endRefused)
	t.Run("many", w.many)
}

// endRefused deletes the report of a sandbox that the operator may not end.
func (w *world) endRefused(t *testing.T) {
	w.server.noEnd.Store(true)
	w.server.claim("sb_kept", 2*time.Hour)
	w.until("it is reported", func() bool { return len(w.reports()) == 1 })
	first := w.reports()["sb-kept"]
	w.must(w.admin.Delete(t.Context(), first))
	w.until("it is reported again", func() bool {
		r := w.reports()["sb-kept"]
		return r != nil && r.UID != first.UID
	})
	w.server.ended("sb_kept")
	w.until("its report is gone", func() bool { return len(w.reports()) == 0 })
	w.server.noEnd.Store(false)
}

// many claims 2,000 sandboxes, most of which end before they are reported.
func (w *world) many(t *testing.T) {
	const all = 2000
	for n := range all {
		w.server.claim(fmt.Sprintf("sb_many%05d", n), 2*time.Hour)
	}
	w.until("some are reported", func() bool { return len(w.reports()) > 20 })
	w.server.ended("")
	w.until("no report is left", func() bool { return len(w.reports()) == 0 })
	s := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: "after", Namespace: "default"}}
	s.Spec = sandbox("after").Spec
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	writes := w.allWrites()
	reported := 0
	for n := range all {
		switch w := writes[fmt.Sprintf("sb-many%05d", n)]; {
		case w > 2:
			t.Errorf("a sandbox cost %d writes", w)
		case w > 0:
			reported++
		}
	}
	if reported == all {
		t.Error("all are reported: nothing bounds the writes")
	}
	t.Logf("%d of %d are reported", reported, all)
}
