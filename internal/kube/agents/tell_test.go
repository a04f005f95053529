package agents

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// told returns the events that a recorder has.
func told(r *events.FakeRecorder) (all []string) {
	for {
		select {
		case e := <-r.Events:
			all = append(all, strings.Join(strings.Fields(e)[:2], " "))
		default:
			return all
		}
	}
}

// TestPoolSays: a pool that stays short says why, once, and that it is full again; one that is filled does
// not.
func TestPoolSays(t *testing.T) {
	to := events.NewFakeRecorder(100)
	r := &pools{o: &Options{}, tell: teller{to}}
	p := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}}
	look := func(w Waiting) {
		reason, message := short(10, w)
		r.say(p, reason, message)
	}
	for _, c := range []struct {
		waits []Waiting
		want  string
	}{
		{[]Waiting{{10, 0, 10}, {10, 4, 6}, {10, 10, 0}}, ""},
		{[]Waiting{{10, 9, 0}, {10, 9, 1}, {10, 10, 0}}, ""}, // after a claim
		{[]Waiting{{6, 0, 6}, {6, 6, 0}, {6, 6, 0}}, "Warning QuotaExceeded"},
		{[]Waiting{{10, 10, 0}, {10, 10, 0}}, "Normal Filled"},
		{[]Waiting{{10, 3, 0}, {10, 3, 0}, {10, 3, 0}}, "Warning NoRoom"},
		{[]Waiting{{10, 3, 2}}, ""},
		{[]Waiting{{10, 10, 0}}, "Normal Filled"},
	} {
		for _, w := range c.waits {
			look(w)
		}
		if got := strings.Join(told(to), ", "); got != c.want {
			t.Errorf("%v: %q, not %q", c.waits, got, c.want)
		}
	}
}

// TestClaimTells: each change of a claim's condition Ready is an event, and what stays is none.
func TestClaimTells(t *testing.T) {
	to := events.NewFakeRecorder(100)
	of := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: "Ready", Status: status, Reason: reason}
	}
	last := metav1.Condition{}
	for _, is := range []metav1.Condition{of(metav1.ConditionFalse, reasonNoPool), of(metav1.ConditionFalse, reasonNoPool),
		of(metav1.ConditionFalse, reasonNotReady), of(metav1.ConditionTrue, sandboxv1.SandboxReasonDependenciesReady),
		of(metav1.ConditionTrue, sandboxv1.SandboxReasonDependenciesReady), of(metav1.ConditionFalse, sandboxv1.SandboxReasonPodFailed)} {
		teller{to}.claim(&extv1.SandboxClaim{}, last, is)
		last = is
	}
	if got := strings.Join(told(to), ", "); got != "Warning WarmPoolNotFound, Normal SandboxNotReady, Normal Ready, Warning PodFailed" {
		t.Error(got)
	}
}

// cache has Sandboxes.
type cache struct {
	client.Reader
	all []sandboxv1.Sandbox
}

func (c cache) List(_ context.Context, to client.ObjectList, _ ...client.ListOption) error {
	to.(*sandboxv1.SandboxList).Items = c.all
	return nil
}

// page returns the metrics of a registry as text.
func page(t *testing.T, all *prometheus.Registry) string {
	t.Helper()
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// TestMetrics: the metrics have agent-sandbox's names and labels, and names of users are bounded.
func TestMetrics(t *testing.T) {
	m := NewMetrics()
	all := prometheus.NewPedanticRegistry()
	if err := all.Register(m); err != nil {
		t.Fatal(err)
	}
	c := &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "n",
		Labels: map[string]string{sandboxv1.CreatedByLabel: "python-client"}}}
	c.Spec.WarmPoolRef.Name = "p"
	m.claimed(c, "t")
	c.Labels[sandboxv1.CreatedByLabel] = "somebody"
	m.claimed(c, "t")
	m.claimed(c, "t")
	p := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}}
	m.waits(key(p), &poolState{5, 3, 1})
	s := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "n",
		Labels:          map[string]string{sandboxv1.SandboxLaunchTypeLabel: "warm"},
		Annotations:     map[string]string{sandboxv1.SandboxTemplateRefAnnotation: "t"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "SandboxClaim", Name: "c", Controller: new(true)}}}}
	set(&s.Status.Conditions, 1, sandboxv1.SandboxConditionReady, true, sandboxv1.SandboxReasonDependenciesReady, "")
	boxes, elected := cache{all: []sandboxv1.Sandbox{*s}}, make(chan struct{})
	want := `# HELP agent_sandbox_claim_creation_total Sandboxes that were created for a SandboxClaim.
# TYPE agent_sandbox_claim_creation_total counter
agent_sandbox_claim_creation_total{created_by="python-client",launch_type="warm",namespace="n",pod_condition="not_ready",sandbox_template="t",warmpool_name="p"} 1
agent_sandbox_claim_creation_total{created_by="unknown",launch_type="warm",namespace="n",pod_condition="not_ready",sandbox_template="t",warmpool_name="p"} 2
`
	pool := `# HELP turnstone_operator_pool_sandboxes Sandboxes of a SandboxWarmPool: wanted, ready, and being made.
# TYPE turnstone_operator_pool_sandboxes gauge
turnstone_operator_pool_sandboxes{namespace="n",state="making",warmpool_name="p"} 1
turnstone_operator_pool_sandboxes{namespace="n",state="ready",warmpool_name="p"} 3
turnstone_operator_pool_sandboxes{namespace="n",state="wanted",warmpool_name="p"} 5
`
	now := `# HELP agent_sandboxes Sandboxes that are served, at this moment.
# TYPE agent_sandboxes gauge
agent_sandboxes{created_by="unknown",expired="false",launch_type="warm",namespace="n",owned_by="SandboxClaim",ready_condition="true",sandbox_template="t"} 1
`
	if got := page(t, all); got != want+pool {
		t.Error(got)
	}
	m.follow(boxes, elected) // the pools of the former manager are gone
	if got := page(t, all); got != want {
		t.Errorf("one that does not lead: %s", got)
	}
	close(elected)
	if got := page(t, all); got != want+now {
		t.Error(got)
	}
	m.waits(key(p), &poolState{})
	m.waits(key(p), nil)
	for n := range maxSeries {
		c.Spec.WarmPoolRef.Name = strings.Repeat("x", n%200+1) + string(rune('a'+n/200%26)) + string(rune('a'+n/5200))
		m.claimed(c, "t")
	}
	if n := strings.Count(page(t, all), "\n"); n > maxSeries+10 {
		t.Errorf("there are %d lines", n)
	}
	(*Metrics)(nil).claimed(c, "t")
	(*Metrics)(nil).waits(key(p), nil)
	(*Metrics)(nil).follow(nil, nil)
}
