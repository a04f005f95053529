package turns_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"turnstone.dev/turnstone/internal/kube/steady"
	"turnstone.dev/turnstone/internal/kube/turns"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// elected runs an operator that elects itself with a short lease, and which is kept, until stop is called.
// starts counts how often it started.
func (w *world) elected(s turns.Server, starts *atomic.Int64) (stop func()) {
	w.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "elect", Namespace: "default"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "get", "update"}}}}
	for _, o := range []client.Object{role, &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "turn-operator"}}}} {
		w.must(w.admin.Create(w.Context(), o))
	}
	cfg, err := w.cluster.Config("turn-operator")
	w.must(err)
	lease, renew, retry := 4*time.Second, 3*time.Second, time.Second
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- steady.Keep(ctx, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			starts.Add(1)
			m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: w.scheme, Metrics: metrics.Options{BindAddress: "0"},
				LeaderElection: true, LeaderElectionNamespace: "default", LeaderElectionID: "operator",
				LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &retry, LeaderElectionReleaseOnCancel: true})
			if err == nil {
				err = turns.Add(m, &turns.Options{Server: s, Log: slog.New(slog.DiscardHandler),
					Settle: 100 * time.Millisecond, Grace: w.grace})
			}
			if err != nil {
				return err
			}
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

// outage takes the API server away for longer than the operator's lease while two Turns run, and compacts
// etcd. Meanwhile a user claims sandboxes that wait, through the gateway, and one of the turns ends. When
// the API server is back, the objects say what happened, and no turn has run twice.
func (w *world) outage(server turns.Server, from func(file, more string) string) {
	ctx, home := w.Context(), os.Getenv("TURN_HOME")
	lines := func() int { // that the turns have written
		return strings.Count(w.turn(home, "test", "cat", "work:/data/some"), "x")
	}
	wrote, starts := lines(), atomic.Int64{}
	stop := w.elected(server, &starts)
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "endless", from("slow", `,"session":"fork"`))))
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "through", from("some", `,"session":"work"`))))
	w.becomes("endless", v1alpha1.PhaseRunning)
	w.until("the other turn runs, unless it has ended by now", func() bool {
		x := &v1alpha1.Turn{}
		w.must(w.admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "through"}, x))
		return x.Status.Phase == v1alpha1.PhaseRunning || x.Status.Phase == v1alpha1.PhasePassed
	})
	// Their objects say so from the reservation on. An operator that has lost its lease starts no turn.
	w.until("the server runs what is reserved", func() bool {
		return !strings.Contains(w.turn(home, "test", "top", "--json"), `"reserved"`)
	})
	started := starts.Load()
	w.cluster.EndAPIServer()
	end := time.Now().Add(w.length())
	w.must(w.cluster.Compact(ctx))
	for range 2 {
		w.claimWarm()
	}
	w.until("the turn has ended", func() bool { return lines() == wrote+1 })
	w.until("the operator has lost the lease", func() bool { return starts.Load() > started })
	w.claimWarm()
	claims := 3
	for ; time.Now().Before(end); claims++ {
		time.Sleep(min(10*time.Second, time.Until(end)))
		w.claimWarm()
	}
	w.Logf("%d sandboxes were claimed meanwhile; the operator started %d times", claims, starts.Load()-started)
	w.must(w.cluster.StartAPIServer(ctx))
	back := time.Now()
	if s := w.ends("through").Status; s.Phase != v1alpha1.PhasePassed {
		w.Errorf("the turn that ended meanwhile: %+v", s)
	}
	w.Logf("the object of the turn that ended meanwhile was right %v after the start of the API server", time.Since(back))
	w.becomes("endless", v1alpha1.PhaseRunning)
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "after", from("some", `,"session":"work"`))))
	if s := w.ends("after").Status; s.Phase != v1alpha1.PhasePassed || lines() != wrote+2 {
		w.Errorf("the turn after it: %+v; %d lines, not %d", s, lines(), wrote+2)
	}
	for _, name := range []string{"through", "after"} {
		if n := w.writes(name); n != 2 {
			w.Errorf("the operator wrote %d times about %s, not 2", n, name)
		}
	}
	w.must(w.admin.Delete(ctx, object(w.T, "Turn", "endless", `{}`)))
	// Its end frees the session.
	w.must(w.admin.Create(ctx, object(w.T, "Turn", "freed", from("read", `,"session":"fork"`))))
	if s := w.ends("freed").Status; s.Phase != v1alpha1.PhasePassed {
		w.Errorf("after the turn that ran through it: %+v", s)
	}
	stop()
}

// length is the shortest length of the outage: that of TURN_TEST_OUTAGE, such as 10m, or else none, so that
// it ends when the operator has lost its lease.
func (w *world) length() time.Duration {
	text := os.Getenv("TURN_TEST_OUTAGE")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	w.must(err)
	return d
}

// claimWarm creates a sandbox through the gateway when one waits, runs a command there, and removes it.
func (w *world) claimWarm() {
	w.Helper()
	const claims = `turnstone_pool_claims_total{result="warm"}`
	user, ready := os.Getenv("TURN_HOME"), `turnstone_pool_sandboxes{state="ready"}`
	w.until("a sandbox waits", func() bool { return w.metric(ready) > 0 })
	before := w.metric(claims)
	id := w.turn(user, "test", "sandbox", "create", "--quiet", "--memory", "256MiB")
	if out := w.turn(user, "test", "sandbox", "exec", id, "--", "echo", "up"); out != "up" {
		w.Errorf("the command printed %q", out)
	}
	if n := w.metric(claims); n != before+1 {
		w.Errorf("%v claims got a sandbox that waited, not %v", n, before+1)
	}
	w.turn(user, "test", "sandbox", "rm", id)
}

var metricsAt = regexp.MustCompile(`serving metrics.*address="?(127\.0\.0\.1:\d+)`)

// metric returns a number of the server's metrics; 0: it has none.
func (w *world) metric(name string) float64 {
	w.Helper()
	log, err := os.ReadFile(filepath.Join(filepath.Dir(os.Getenv("TURN_TEST_SERVER_HOME")), "log"))
	w.must(err)
	at := metricsAt.FindSubmatch(log)
	if at == nil {
		w.Fatalf("the server serves no metrics:\n%s", log)
	}
	r, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "http://"+string(at[1])+"/metrics", nil)
	w.must(err)
	a, err := http.DefaultClient.Do(r)
	w.must(err)
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	w.must(err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			w.must(err)
			return n
		}
	}
	return 0
}
