package agents_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/testsize"
)

// patience bounds each wait, on a machine that does much else.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// shared is the cluster of the tests that do not take it away.
var shared kubetest.Shared

// A world is a cluster, and what acts on it.
type world struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   client.Client
	before  int // writes of earlier tests of the cluster
	server  *server
	follow  *agents.Follow      // nil: nothing is reported
	again   time.Duration       // between two looks; 0: one second
	wait    time.Duration       // bounds each wait; 0: patience
	guest   time.Duration       // for a sandbox's answer; 0: the default
	quiet   time.Duration       // before a creation that takes long is in the status; 0: never
	reads   func(client.Object) // is called with what an operator with write has read, and may change it

	readable map[string]bool // namespaces in which the operator reads ConfigMaps and Secrets
}

// newWorld returns a world whose cluster other tests have used, and which has no object of theirs.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := worldOf(t, shared.Use(t, "../../..", grant))
	t.Cleanup(func() { // after the end of its operators, whose cleanup comes later
		if err := kubetest.Clear(context.Background(), w.admin, extv1.GroupVersion.WithKind("SandboxClaim"),
			extv1.GroupVersion.WithKind("SandboxWarmPool"), extv1.GroupVersion.WithKind("SandboxTemplate"),
			sandboxv1.GroupVersion.WithKind("Sandbox")); err != nil {
			t.Error(err)
		}
	})
	all, err := w.cluster.Writes()
	w.must(err)
	w.before = len(all)
	return w
}

// ownWorld returns a world with a cluster of its own.
func ownWorld(t *testing.T) *world {
	t.Helper()
	c := kubetest.Run(t, "../../..")
	if err := grant(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return worldOf(t, c)
}

// grant gives the operator of the tests its rights.
func grant(ctx context.Context, c *kubetest.Cluster) error {
	return c.GrantOperator(ctx, "../../../packaging/kubernetes/turnstone.yaml", "turn-operator")
}

func worldOf(t *testing.T, c *kubetest.Cluster) *world {
	t.Helper()
	w := &world{T: t, cluster: c, server: newServer(), readable: map[string]bool{}}
	cfg, err := c.Config(kubetest.Admin)
	w.must(err)
	scheme, err := agents.Scheme()
	w.must(err)
	w.admin, err = client.New(cfg, client.Options{Scheme: scheme})
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// until waits until f is true.
func (w *world) until(what string, f func() bool) {
	w.Helper()
	if !kubetest.Poll(cmp.Or(w.wait, patience), f) {
		w.Fatalf("waiting until %s took too long; sandboxes: %v", what, w.server.all())
	}
}

// operator runs an operator until stop is called. write is called before and after each of its writes.
func (w *world) operator(s agents.Server, write func(o client.Object) error, classes ...string) (stop func()) {
	w.Helper()
	cfg, err := w.cluster.Config("turn-operator")
	w.must(err)
	scheme, err := agents.Scheme()
	w.must(err)
	m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"},
		NewClient: func(cfg *rest.Config, o client.Options) (client.Client, error) {
			c, err := client.NewWithWatch(cfg, o)
			if err != nil || write == nil {
				return c, err
			}
			f := faulty(write)
			if w.reads != nil {
				f.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := c.Get(ctx, key, o, opts...)
					if err == nil {
						w.reads(o)
					}
					return err
				}
			}
			return interceptor.NewClient(c, f), nil
		}})
	w.must(err)
	w.must(agents.Add(m, &agents.Options{Server: s, Cluster: "test", Default: true, Classes: classes, Follow: w.follow, Log: slog.New(slog.DiscardHandler),
		Again: cmp.Or(w.again, time.Second), Guest: w.guest, Quiet: cmp.Or(w.quiet, time.Hour)}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				w.Errorf("the operator: %v", err)
			}
		}
	}
	w.Cleanup(stop)
	return stop
}

// faulty calls write before and after each write.
func faulty(write func(o client.Object) error) interceptor.Funcs {
	around := func(o client.Object, f func() error) error {
		if err := write(o); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
		return write(o)
	}
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return around(o, func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return around(o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return around(o, func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			return around(o, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	}
}

// sandbox returns a Sandbox whose container has an image.
func sandbox(name string) *sandboxv1.Sandbox {
	s := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	s.Spec.PodTemplate.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
		Image: "turnstone.dev/template/base", Command: []string{"sleep", "1000"},
		Env: []corev1.EnvVar{{Name: "A", Value: "b"}}}}}
	return s
}

// condition returns a condition of an object.
func (w *world) condition(o client.Object, kind string) metav1.Condition {
	w.Helper()
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		if !apierrors.IsNotFound(err) {
			w.Fatal(err)
		}
		return metav1.Condition{Reason: "gone"}
	}
	all := []metav1.Condition{}
	switch x := o.(type) {
	case *sandboxv1.Sandbox:
		all = x.Status.Conditions
	case *extv1.SandboxClaim:
		all = x.Status.Conditions
	}
	if c := meta.FindStatusCondition(all, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func (w *world) becomes(o client.Object, reason string) {
	w.Helper()
	last := metav1.Condition{}
	if !kubetest.Poll(cmp.Or(w.wait, patience), func() bool {
		last = w.condition(o, "Ready")
		return last.Reason == reason
	}) {
		w.Fatalf("%s is %+v and not %s", o.GetName(), last, reason)
	}
}

// writes counts what the operator wrote about an object.
func (w *world) writes(name string) int { w.Helper(); return w.allWrites()[name] }

// allWrites counts what the operator wrote, by the names of the objects.
func (w *world) allWrites() map[string]int {
	w.Helper()
	all, err := w.cluster.Writes()
	w.must(err)
	of := map[string]int{}
	for _, one := range all[w.before:] {
		if one.User == "turn-operator" {
			of[one.Name]++
		}
	}
	return of
}

func TestSandbox(t *testing.T) {
	w := newWorld(t)
	w.operator(w.server, nil)
	t.Run("life", w.life)
	t.Run("claims", w.claims)
	t.Run("scaled", w.scaled)
	t.Run("refused", w.refused)
	t.Run("time", w.time)
}

// life follows a Sandbox from its creation to its end.
func (w *world) life(t *testing.T) {
	s := sandbox("life")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	all := w.server.all()
	if len(all) != 1 || all[0].request.GetTemplate() != "base" || all[0].request.Env["A"] != "b" ||
		len(all[0].main) != 1 || all[0].tenant != "default" {
		t.Fatalf("sandboxes are %+v", all)
	}
	if n := w.writes("life"); n != 2 {
		t.Errorf("the operator wrote %d times until the sandbox was ready, not 2", n)
	}
	s.Spec.OperatingMode = sandboxv1.SandboxOperatingModeSuspended
	w.must(w.admin.Update(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonSuspended)
	if c := w.condition(s, "Suspended"); c.Status != metav1.ConditionTrue || !w.server.all()[0].Paused {
		t.Errorf("suspended: %+v", c)
	}
	s.Spec.OperatingMode = sandboxv1.SandboxOperatingModeRunning
	w.must(w.admin.Update(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	if w.server.all()[0].Paused || w.server.created != 1 {
		t.Error("the sandbox was not resumed")
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.becomes(s, "gone")
	if all := w.server.all(); len(all) != 0 {
		t.Errorf("sandboxes are left: %v", all)
	}
}

// claims follows a claim, and one that the template refuses.
func (w *world) claims(t *testing.T) {
	tmpl := &extv1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "default"}}
	tmpl.Spec.SandboxBlueprint = sandbox("").Spec.SandboxBlueprint
	tmpl.Spec.EnvVarsInjectionPolicy = extv1.EnvVarsInjectionPolicyAllowed
	pool := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: "t"}}}
	claim := &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default"},
		Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "p"},
			Env: []extv1.EnvVar{{Name: "C", Value: "d"}}}}
	w.must(w.admin.Create(t.Context(), claim))
	w.becomes(claim, "WarmPoolNotFound")
	w.must(w.admin.Create(t.Context(), tmpl))
	w.must(w.admin.Create(t.Context(), pool))
	w.becomes(claim, sandboxv1.SandboxReasonDependenciesReady)
	if all := w.server.all(); len(all) != 1 || all[0].request.Env["C"] != "d" || claim.Status.SandboxStatus.Name != "claim" {
		t.Errorf("sandboxes are %+v", all)
	}
	w.until("the pool has its target", func() bool {
		w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(pool), pool))
		return pool.Status.ReadyReplicas == 1 && pool.Status.Replicas == 3
	})
	refused := &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: "refused", Namespace: "default"},
		Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "p"},
			Env: []extv1.EnvVar{{Name: "A", Value: "other"}}}}
	w.must(w.admin.Create(t.Context(), refused))
	w.becomes(refused, "EnvVarsInjectionRejected")
	w.must(w.admin.Delete(t.Context(), refused))
	w.ended(t)
	w.must(w.admin.Delete(t.Context(), claim))
	w.until("the claim's sandbox has ended", func() bool { return len(w.server.all()) == 0 })
	w.becomes(&sandboxv1.Sandbox{ObjectMeta: claim.ObjectMeta}, "gone")
}

// ended lets the sandbox of a claim end by itself: the claim goes in its time after that.
func (w *world) ended(t *testing.T) {
	second := int32(1)
	claim := &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: "ended", Namespace: "default"},
		Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "p"},
			Lifecycle: &extv1.Lifecycle{TTLSecondsAfterFinished: &second, ShutdownPolicy: extv1.ShutdownPolicyDelete}}}
	began := time.Now()
	w.must(w.admin.Create(t.Context(), claim))
	w.becomes(claim, sandboxv1.SandboxReasonDependenciesReady)
	// Of a claim that takes long the status says so, once.
	if n := w.writes("ended"); n != 3 && (n != 4 || time.Since(began) < 2*time.Second) {
		t.Errorf("the operator wrote %d times until the claim was ready, not 3", n)
	}
	w.server.mu.Lock()
	for _, b := range w.server.boxes {
		if b.Metadata[agents.MetadataName] == "ended" {
			b.State = v1.SandboxState_SANDBOX_STATE_STOPPED
		}
	}
	w.server.mu.Unlock()
	w.becomes(claim, "gone")
	w.becomes(&sandboxv1.Sandbox{ObjectMeta: claim.ObjectMeta}, "gone")
}

// scaled scales a pool by its subresource, as kubectl and an autoscaler do, and deletes it.
func (w *world) scaled(t *testing.T) {
	pool := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
	scale := &autoscalingv1.Scale{}
	w.must(w.admin.SubResource("scale").Get(t.Context(), pool, scale))
	if scale.Spec.Replicas != 1 || scale.Status.Replicas != 3 || scale.Status.Selector == "" {
		t.Errorf("the scale is %+v", scale)
	}
	for _, n := range []int32{5, 0, 4} {
		scale.Spec.Replicas = n
		w.must(w.admin.SubResource("scale").Update(t.Context(), pool, client.WithSubResourceBody(scale)))
		w.until("the pool is scaled", func() bool {
			w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(pool), pool))
			return w.server.target("default/p") == n && pool.Status.ReadyReplicas == n &&
				pool.Status.ObservedGeneration == pool.Generation
		})
		w.must(w.admin.SubResource("scale").Get(t.Context(), pool, scale))
	}
	w.must(w.admin.Delete(t.Context(), pool))
	w.until("the pool's target has ended", func() bool { return w.server.target("default/p") == 0 })
}

// refused tries pods that no sandbox can be.
func (w *world) refused(t *testing.T) {
	yes := true
	for name, change := range map[string]func(p *corev1.PodSpec){
		"hostNetwork": func(p *corev1.PodSpec) { p.HostNetwork = true },
		"privileged": func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		},
		"sidecar": func(p *corev1.PodSpec) {
			p.Containers = append(p.Containers, corev1.Container{Name: "more", Image: "x"})
		},
		"hostPath": func(p *corev1.PodSpec) {
			p.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		},
	} {
		s := sandbox(strings.ToLower(name))
		change(&s.Spec.PodTemplate.Spec)
		w.must(w.admin.Create(t.Context(), s))
		w.becomes(s, agents.ReasonInvalid)
		w.must(w.admin.Delete(t.Context(), s))
	}
	other := "gvisor"
	s := sandbox("others")
	s.Spec.PodTemplate.Spec.RuntimeClassName = &other
	w.must(w.admin.Create(t.Context(), s))
	after := sandbox("after")
	w.must(w.admin.Create(t.Context(), after))
	w.becomes(after, sandboxv1.SandboxReasonDependenciesReady)
	if w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s)); len(s.Finalizers) > 0 {
		t.Error("an object of another class was taken")
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.must(w.admin.Delete(t.Context(), after))
	w.becomes(after, "gone")
}

// time lets the time of two Sandboxes end.
func (w *world) time(t *testing.T) {
	//wait: it may be over before the objects are there
	soon, remove := metav1.NewTime(time.Now().Add(2*time.Second)), sandboxv1.ShutdownPolicyDelete
	keep, gone := sandbox("keep"), sandbox("go")
	keep.Spec.ShutdownTime, gone.Spec.ShutdownTime, gone.Spec.ShutdownPolicy = &soon, &soon, &remove
	w.must(w.admin.Create(t.Context(), keep))
	w.must(w.admin.Create(t.Context(), gone))
	w.becomes(keep, sandboxv1.SandboxReasonExpired)
	w.becomes(gone, "gone")
	// the container ends after the status is written
	w.until("no sandbox is left", func() bool { return len(w.server.all()) == 0 })
	w.must(w.admin.Delete(t.Context(), keep))
	w.becomes(keep, "gone")
}

// TestRestarts ends the operator before and after each of its steps in the life of a Sandbox, and
// starts another.
func TestRestarts(t *testing.T) {
	w := newWorld(t)
	steps := w.lifeWithFault("none", -1)
	if steps < 10 {
		t.Fatalf("a life has %d steps", steps)
	}
	for n := 0; n < steps; n += testsize.Step(4) {
		w.lifeWithFault(fmt.Sprintf("fault-%d", n), n)
	}
	t.Logf("%d restarts", steps)
}

// lifeWithFault follows a Sandbox whose operator ends at its step number at, and returns how many
// steps there were.
func (w *world) lifeWithFault(name string, at int) int {
	w.Helper()
	w.server = newServer()
	var steps atomic.Int64
	var crashed atomic.Bool
	down := make(chan struct{})
	step := func() error {
		if crashed.Load() {
			return errCrash
		}
		if n := steps.Add(1) - 1; int(n) == at && crashed.CompareAndSwap(false, true) {
			close(down)
			return errCrash
		}
		return nil
	}
	w.server.step = func(string, bool) error { return step() }
	stop := w.operator(w.server, func(client.Object) error { return step() })
	over := make(chan struct{})
	restarted := make(chan func(), 1)
	go func() {
		select {
		case <-down:
			stop()
			crashed.Store(false) // no step has that number again
			restarted <- w.operator(w.server, nil)
		case <-over:
			restarted <- stop
		}
	}()
	s := sandbox(name)
	w.must(w.admin.Create(w.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	for _, b := range w.server.all() {
		if len(b.main) != 1 {
			w.Errorf("%s: %d processes", name, len(b.main))
		}
	}
	w.must(w.admin.Delete(w.Context(), s))
	w.becomes(s, "gone")
	if all := w.server.all(); len(all) != 0 || w.server.created != 1 {
		w.Errorf("%s: %d sandboxes were made, and are left: %v", name, w.server.created, all)
	}
	close(over)
	(<-restarted)()
	return int(steps.Load())
}
