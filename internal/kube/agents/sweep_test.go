package agents

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// A vanishing is a cluster with namespaces and no object in them.
type vanishing struct {
	client.Reader
	names []string
}

func (v *vanishing) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	all, _ := list.(*corev1.NamespaceList)
	for _, name := range v.names {
		all.Items = append(all.Items, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return nil
}

func (v *vanishing) Get(_ context.Context, k client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, k.Name)
}

// A holder has the sandboxes of namespaces.
type holder struct {
	Server
	boxes map[string][]*v1.Sandbox
	asked map[string]int
}

func (h *holder) List(_ context.Context, namespace, _ string) ([]*v1.Sandbox, error) {
	h.asked[namespace]++
	return h.boxes[namespace], nil
}

func (h *holder) Delete(_ context.Context, namespace, id string) error {
	if id == "sb_denied" {
		return errors.New("it is refused")
	}
	delete(h.boxes, namespace)
	return nil
}

// TestSweepGoesOn: what cannot be removed does not keep the rest.
func TestSweepGoesOn(t *testing.T) {
	old := timestamppb.New(time.Now().Add(-time.Hour))
	h := &holder{boxes: map[string][]*v1.Sandbox{}, asked: map[string]int{}}
	live := &vanishing{}
	for _, name := range []string{"a", "b", "c", "d"} {
		id := "sb_1"
		if name < "c" {
			id = "sb_denied"
		}
		h.boxes[name] = []*v1.Sandbox{{SandboxId: id, Created: old}}
		live.names = append(live.names, name)
	}
	s := &sweeper{o: &Options{Server: h, Log: slog.New(slog.DiscardHandler)}, live: live, had: map[string]bool{}}
	if err := s.sweep(t.Context(), time.Minute); err != nil || len(h.boxes) != 2 {
		t.Errorf("%d namespaces have sandboxes: %v", len(h.boxes), err)
	}
}

// TestSweepOfGoneNamespace: a sandbox is removed whose namespace has gone before it is old enough, as
// after its object's finalizer was removed by hand; then nobody asks for the namespace any more.
func TestSweepOfGoneNamespace(t *testing.T) {
	b := &v1.Sandbox{SandboxId: "sb_1", Created: timestamppb.New(time.Now().Add(-time.Minute))}
	h := &holder{boxes: map[string][]*v1.Sandbox{"gone": {b}}, asked: map[string]int{}}
	live := &vanishing{names: []string{"gone", "stays"}}
	s := &sweeper{o: &Options{Server: h, Log: slog.New(slog.DiscardHandler)}, live: live, had: map[string]bool{}}
	sweep := func(age time.Duration, want int) {
		t.Helper()
		if err := s.sweep(t.Context(), age); err != nil {
			t.Fatal(err)
		}
		if len(h.boxes) != want {
			t.Errorf("%d namespaces have sandboxes, not %d", len(h.boxes), want)
		}
	}
	sweep(time.Hour, 1)
	live.names = []string{"stays"}
	sweep(time.Hour, 1)
	sweep(0, 0)
	sweep(0, 0)
	if before := h.asked["gone"]; before != 4 || s.had["gone"] {
		t.Errorf("asked %d times", before)
	}
	if sweep(0, 0); h.asked["gone"] != 4 || h.asked["stays"] != 5 {
		t.Errorf("asked %v", h.asked)
	}
}

// rememberer is a holder that knows the namespaces of an earlier operator, at the second question.
type rememberer struct {
	*holder
	names []string
	asks  int
}

func (r *rememberer) Tenants(context.Context) ([]string, error) {
	if r.asks++; r.asks == 1 {
		return nil, errors.New("the server is away")
	}
	return r.names, nil
}

// TestSweepAfterRestart: a sandbox whose namespace has gone while no operator ran is removed by the next one,
// which asks the server for namespaces until it answers, and then no more.
func TestSweepAfterRestart(t *testing.T) {
	b := &v1.Sandbox{SandboxId: "sb_1", Created: timestamppb.New(time.Now().Add(-time.Hour))}
	r := &rememberer{holder: &holder{boxes: map[string][]*v1.Sandbox{"gone": {b}}, asked: map[string]int{}},
		names: []string{"gone", "stays"}}
	s := &sweeper{o: &Options{Server: r, Log: slog.New(slog.DiscardHandler)}, live: &vanishing{names: []string{"stays"}},
		had: map[string]bool{}}
	for range 4 {
		if err := s.sweep(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.boxes) != 0 || r.asks != 2 || len(s.had) != 0 || r.asked["gone"] != 2 {
		t.Errorf("%d namespaces have sandboxes, %d questions, asked %v, remembered %v", len(r.boxes), r.asks, r.asked, s.had)
	}
}
