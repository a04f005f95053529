package turns_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/kube/turns"
	"turnstone.dev/turnstone/internal/kube/v1alpha1"
)

// patience bounds each wait, on a machine that does much else.
const patience = 5 * time.Minute

// A world is a cluster, and who administers it.
type world struct {
	*testing.T
	cluster *kubetest.Cluster
	scheme  *runtime.Scheme
	admin   client.Client
	grace   time.Duration // of Turns that wait; 0: the default
	most    int           // turns at a time; 0: the default
	held    int           // bytes of their documents; 0: the default
	user    string        // home of a client of the tenant default, at a real server
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, cluster: kubetest.Run(t, "../../.."), scheme: runtime.NewScheme()}
	w.must(clientgoscheme.AddToScheme(w.scheme))
	w.must(v1alpha1.AddToScheme(w.scheme))
	cfg, err := w.cluster.Config(kubetest.Admin)
	w.must(err)
	w.admin, err = client.New(cfg, client.Options{Scheme: w.scheme})
	w.must(err)
	w.must(w.cluster.GrantOperator(t.Context(), "../../../packaging/kubernetes/turnstone.yaml", "turn-operator"))
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
	if !kubetest.Poll(patience, f) {
		w.Fatalf("waiting until %s took too long", what)
	}
}

// operator runs an operator until stop is called. write is called before and after each of its writes;
// nil: nothing is.
func (w *world) operator(s turns.Server, write func(after bool) error) (stop func()) {
	w.Helper()
	cfg, err := w.cluster.Config("turn-operator")
	w.must(err)
	m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: w.scheme, Metrics: metrics.Options{BindAddress: "0"},
		NewClient: func(cfg *rest.Config, o client.Options) (client.Client, error) {
			c, err := client.NewWithWatch(cfg, o)
			if err != nil || write == nil {
				return c, err
			}
			return interceptor.NewClient(c, faulty(write)), nil
		}})
	w.must(err)
	w.must(turns.Add(m, &turns.Options{Server: s, Log: slog.New(slog.DiscardHandler), Settle: 100 * time.Millisecond,
		Grace: w.grace, Most: w.most, Held: w.held}))
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
func faulty(write func(after bool) error) interceptor.Funcs {
	around := func(f func() error) error {
		if err := write(false); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
		return write(true)
	}
	return interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return around(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return around(func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			return around(func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	}
}

// writes counts what the operator wrote about an object, its events among it.
func (w *world) writes(name string) (n int) {
	w.Helper()
	all, err := w.cluster.Writes()
	w.must(err)
	for _, one := range all {
		if one.User == "turn-operator" && (one.Name == name || one.Resource == "events" && len(one.Name) > len(name) &&
			one.Name[:len(name)+1] == name+".") {
			n++
		}
	}
	return n
}

// ends waits for the end of a Turn.
func (w *world) ends(name string) *v1alpha1.Turn { w.Helper(); return w.endsIn("default", name) }

func (w *world) endsIn(namespace, name string) *v1alpha1.Turn {
	w.Helper()
	t := &v1alpha1.Turn{}
	if !kubetest.Poll(patience, func() bool {
		w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, t))
		return meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.Completed)
	}) {
		w.Fatalf("Turn %s does not end: %+v", name, t.Status)
	}
	return t
}

// becomes waits for a phase of a Turn.
func (w *world) becomes(name string, phase v1alpha1.Phase) {
	w.Helper()
	w.until(name+" is "+string(phase), func() bool {
		t := &v1alpha1.Turn{}
		w.must(w.admin.Get(w.Context(), client.ObjectKey{Namespace: "default", Name: name}, t))
		return t.Status.Phase == phase
	})
}

// session returns a Session; nil: it is not there.
func (w *world) session(name string) *v1alpha1.Session {
	w.Helper()
	s := &v1alpha1.Session{}
	err := w.admin.Get(w.Context(), client.ObjectKey{Namespace: "default", Name: name}, s)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return s
}

func (w *world) namespace(name string) {
	w.Helper()
	w.must(w.admin.Create(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
}

// reason returns the reason of a condition.
func reason(all []metav1.Condition, kind string) string {
	if c := meta.FindStatusCondition(all, kind); c != nil {
		return c.Reason
	}
	return ""
}
