package agents_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/steady"
	"turnstone.dev/turnstone/internal/testsize"
)

// elected runs an operator that elects itself, and which is kept, until stop is called. starts counts how
// often it started.
func (w *world) elected(starts *atomic.Int64) (stop func()) {
	w.Helper()
	cfg, err := w.cluster.Config("turn-operator", "system:masters")
	w.must(err)
	scheme, err := agents.Scheme()
	w.must(err)
	lease, renew, retry := 4*time.Second, 3*time.Second, time.Second
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- steady.Keep(ctx, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"},
				LeaderElection: true, LeaderElectionNamespace: "default", LeaderElectionID: "operator",
				LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry, LeaderElectionReleaseOnCancel: true})
			if err != nil {
				return err
			}
			err = agents.Add(m, &agents.Options{Server: w.server, Cluster: "test", Default: true,
				Log: slog.New(slog.DiscardHandler), Again: time.Second})
			if err != nil {
				return err
			}
			starts.Add(1)
			return m.Start(ctx)
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the operator: %v", err)
		}
	})
	w.Cleanup(stop)
	return stop
}

// plain is a Sandbox without a process.
func plain(namespace, name string) *sandboxv1.Sandbox {
	s := sandbox(name)
	s.Namespace, s.Spec.PodTemplate.Spec.Containers[0].Command = namespace, nil
	return s
}

// TestBadTimes floods an operator by one namespace, takes the API server away, and then the operator that leads.
func TestBadTimes(t *testing.T) {
	w := ownWorld(t)
	var starts atomic.Int64
	stop := w.elected(&starts)
	t.Run("flood", w.flood)
	t.Run("outage", func(t *testing.T) { w.outage(t, &starts) })
	stop()
	t.Run("leaders", w.leaders)
}

// flooded is how many claims a flood has: twice as many as there are workers, at a cost that each run of the
// tests can bear. TURN_TEST_FLOOD is another number, such as 10000.
func flooded(t *testing.T) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("TURN_TEST_FLOOD"), testsize.Of("200", "400")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// flood creates many claims in a namespace whose quota is small, and for which the server is slow: none of
// them is answered until the claim of another namespace, which comes after all of them, has its sandbox.
// Each claim that is refused says why, and costs the API server few writes.
func (w *world) flood(t *testing.T) {
	const quota = 20
	many, hold := flooded(t), make(chan struct{})
	w.wait = 3*patience + time.Duration(many)*200*time.Millisecond // it may lose its lease on a busy machine
	w.server.mu.Lock()
	w.server.quota = map[string]int{"flood": quota}
	w.server.holds = map[string]chan struct{}{"flood": hold}
	w.server.mu.Unlock()
	for _, ns := range []string{"flood", "quiet"} {
		w.must(w.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		tmpl := &extv1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: ns}}
		tmpl.Spec.SandboxBlueprint = plain(ns, "").Spec.SandboxBlueprint
		w.must(w.admin.Create(t.Context(), tmpl))
		w.must(w.admin.Create(t.Context(), &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: ns},
			Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: "t"}}}))
	}
	claim := func(ns, name string) *extv1.SandboxClaim {
		return &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ns},
			Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "p"}}}
	}
	began := time.Now()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := i; n < many; n += 8 {
				if err := w.admin.Create(t.Context(), claim("flood", fmt.Sprint("c", n))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	asked := time.Now()
	quiet := claim("quiet", "one")
	w.must(w.admin.Create(t.Context(), quiet))
	w.becomes(quiet, sandboxv1.SandboxReasonDependenciesReady)
	served := time.Now()
	close(hold)
	w.until("each claim is served, or says why not", func() bool {
		time.Sleep(time.Duration(many) * time.Millisecond / 2) // each list has all of them
		return w.answered(t, many, quota)
	})
	most, of := 0, w.allWrites()
	for n := range many {
		most = max(most, of[fmt.Sprint("c", n)])
	}
	if most > 8 { // Sandbox, its status, the claim's status; some of them twice
		t.Errorf("the operator wrote %d times about one claim", most)
	}
	t.Logf("%d claims were created in %v; another namespace's had its sandbox %v later, and all had an answer after another %v; "+
		"at most %d writes for each", many, asked.Sub(began), served.Sub(asked), time.Since(served), most)
}

// answered reports whether all claims of the flood have an answer, and as many as the quota a sandbox.
func (w *world) answered(t *testing.T, many, quota int) bool {
	list := &extv1.SandboxClaimList{}
	w.must(w.admin.List(t.Context(), list, client.InNamespace("flood")))
	served, refused := 0, 0
	for i := range list.Items {
		for _, c := range list.Items[i].Status.Conditions {
			switch {
			case c.Type != "Ready":
			case c.Status == metav1.ConditionTrue:
				served++
			case strings.Contains(c.Message, "the limit of its sandboxes"):
				refused++
			}
		}
	}
	if served > quota {
		t.Fatalf("%d are served", served)
	}
	return served == quota && refused == many-quota
}

// outage takes the API server away for longer than the leader's lease, and compacts etcd meanwhile. What
// is there stays, the operator takes the lease again, and what was asked for before and after exists once.
func (w *world) outage(t *testing.T, starts *atomic.Int64) {
	there := plain("default", "there")
	w.must(w.admin.Create(t.Context(), there))
	w.becomes(there, sandboxv1.SandboxReasonDependenciesReady)
	w.server.mu.Lock()
	created, before := w.server.created, starts.Load()
	w.server.mu.Unlock()
	soon := plain("default", "soon")
	w.must(w.admin.Create(t.Context(), soon))
	w.cluster.EndAPIServer()
	w.must(w.cluster.Compact(t.Context()))
	w.until("the operator has lost the lease", func() bool { return starts.Load() > before })
	if len(w.server.all()) == 0 {
		t.Error("sandboxes were removed while the API server was away")
	}
	w.must(w.cluster.StartAPIServer(t.Context()))
	after := plain("default", "after")
	w.must(w.admin.Create(t.Context(), after))
	w.becomes(soon, sandboxv1.SandboxReasonDependenciesReady)
	w.becomes(after, sandboxv1.SandboxReasonDependenciesReady)
	w.must(w.admin.Delete(t.Context(), there))
	w.becomes(there, "gone")
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	if n := w.server.created - created; n != 2 {
		t.Errorf("%d sandboxes were made for two objects", n)
	}
	if n := starts.Load(); n > before+20 {
		t.Errorf("the operator started %d times", n-before)
	}
}
