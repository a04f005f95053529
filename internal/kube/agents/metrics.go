package agents

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxSeries bounds the counters that are kept: objects are named by users.
	maxSeries = 10_000
	// otherName stands for the names of a template and a pool when there are too many.
	otherName = "__other__"
	// collectTime bounds the list of Sandboxes for a page of metrics.
	collectTime = 5 * time.Second
)

// Metrics are those of agent-sandbox's own controller that autoscalers of pools read, with its names and
// labels, and the state of pools. Only the leader has numbers. It is safe for concurrent use.
type Metrics struct {
	created   *prometheus.CounterVec
	sandboxes *prometheus.Desc
	pool      *prometheus.Desc

	mu      sync.Mutex
	series  map[[5]string]bool
	pools   map[types.NamespacedName]poolState
	boxes   client.Reader   // the cache of the present manager; nil: there is none
	elected <-chan struct{} // closed when that manager leads
}

// A poolState is what is known of a pool.
type poolState struct{ wanted, ready, making int32 }

// NewMetrics returns metrics of an operator, whose managers add to them one after another.
func NewMetrics() *Metrics {
	return &Metrics{
		created: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "agent_sandbox_claim_creation_total",
			Help: "Sandboxes that were created for a SandboxClaim."},
			[]string{"namespace", "sandbox_template", "launch_type", "warmpool_name", "pod_condition", "created_by"}),
		sandboxes: prometheus.NewDesc("agent_sandboxes", "Sandboxes that are served, at this moment.",
			[]string{"namespace", "ready_condition", "expired", "launch_type", "sandbox_template", "owned_by",
				"created_by"}, nil),
		pool: prometheus.NewDesc("turnstone_operator_pool_sandboxes",
			"Sandboxes of a SandboxWarmPool: wanted, ready, and being made.", []string{"namespace", "warmpool_name", "state"}, nil),
		series: map[[5]string]bool{}, pools: map[types.NamespacedName]poolState{}}
}

// follow makes m count the objects of a manager's cache, once it leads.
func (m *Metrics) follow(boxes client.Reader, elected <-chan struct{}) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes, m.elected = boxes, elected
	clear(m.pools)
}

// claimed counts the Sandbox that was created for a claim.
func (m *Metrics) claimed(c *extv1.SandboxClaim, template string) {
	if m == nil {
		return
	}
	k := [5]string{c.Namespace, template, sandboxv1.SandboxLaunchTypeWarm, c.Spec.WarmPoolRef.Name, createdBy(c.Labels)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.series[k] && len(m.series) >= maxSeries {
		k[0], k[1], k[3] = otherName, otherName, otherName
	}
	m.series[k] = true
	m.created.WithLabelValues(k[0], k[1], k[2], k[3], "not_ready", k[4]).Inc()
}

// createdBy is the label of who made an object, of those that agent-sandbox's metrics know.
func createdBy(labels map[string]string) string {
	by := labels[sandboxv1.CreatedByLabel]
	if slices.Contains([]string{"go-client", "python-client", "controller"}, by) {
		return by
	}
	return "unknown"
}

// waits notes the state of a pool; nil: it is gone.
func (m *Metrics) waits(k types.NamespacedName, s *poolState) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.pools[k]; s == nil {
		delete(m.pools, k)
	} else if known || len(m.pools) < maxSeries {
		m.pools[k] = *s
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.created.Describe(to)
	to <- m.sandboxes
	to <- m.pool
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.created.Collect(to)
	m.mu.Lock()
	boxes, elected := m.boxes, m.elected
	for k, s := range m.pools {
		for state, n := range map[string]int32{"wanted": s.wanted, "ready": s.ready, "making": s.making} {
			to <- prometheus.MustNewConstMetric(m.pool, prometheus.GaugeValue, float64(n), k.Namespace, k.Name, state)
		}
	}
	m.mu.Unlock()
	if boxes == nil {
		return
	}
	select {
	case <-elected:
	default:
		return // the leader counts them
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTime) // the interface has none
	defer cancel()
	all := &sandboxv1.SandboxList{}
	if boxes.List(ctx, all, client.UnsafeDisableDeepCopy) != nil {
		return
	}
	counts := map[[7]string]int{}
	for i := range all.Items {
		if k := labelsOf(&all.Items[i]); len(counts) < maxSeries || counts[k] > 0 {
			counts[k]++
		}
	}
	for k, n := range counts {
		to <- prometheus.MustNewConstMetric(m.sandboxes, prometheus.GaugeValue, float64(n), k[:]...)
	}
}

// labelsOf returns the labels of the metric agent_sandboxes, in the order of its description.
func labelsOf(s *sandboxv1.Sandbox) [7]string {
	k := [7]string{s.Namespace, "false", "false", "cold", "unknown", "None", createdBy(s.Labels)}
	if c := meta.FindStatusCondition(s.Status.Conditions, string(sandboxv1.SandboxConditionReady)); c != nil {
		if c.Status == metav1.ConditionTrue {
			k[1] = "true"
		}
		if c.Reason == sandboxv1.SandboxReasonExpired {
			k[2] = "true"
		}
	}
	if s.Labels[sandboxv1.SandboxLaunchTypeLabel] == sandboxv1.SandboxLaunchTypeWarm {
		k[3] = "warm"
	}
	if t := s.Annotations[sandboxv1.SandboxTemplateRefAnnotation]; t != "" {
		k[4] = t
	}
	if o := metav1.GetControllerOf(s); o != nil && (o.Kind == "SandboxClaim" || o.Kind == "SandboxWarmPool") {
		k[5] = o.Kind
	}
	return k
}
