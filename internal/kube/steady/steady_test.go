package steady_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"turnstone.dev/turnstone/internal/kube/steady"
)

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// TestQueueIsFair: after 10,000 objects of one namespace another's is the second, and an object that is
// added again while it waits is there once.
func TestQueueIsFair(t *testing.T) {
	q := steady.NewQueue("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](1, 1))
	defer q.ShutDown()
	const flood = 10_000
	for n := range flood {
		q.Add(request("flood", fmt.Sprint(n)))
	}
	q.Add(request("flood", "5"))
	q.Add(request("quiet", "one"))
	if q.Len() != flood+1 {
		t.Fatalf("%d wait", q.Len())
	}
	at := 0
	seen := map[reconcile.Request]bool{}
	for n := range flood + 1 {
		r, _ := q.Get()
		if q.Done(r); r.Namespace == "quiet" {
			at = n
		} else if want := fmt.Sprint(len(seen)); r.Name != want {
			t.Fatalf("%s comes, not %s", r.Name, want)
		} else {
			seen[r] = true
		}
	}
	if at > 1 || len(seen) != flood {
		t.Errorf("the quiet namespace is number %d; the flood has %d", at, len(seen))
	}
}

// TestRetries: an object whose look fails again and again is tried again within a minute, however often.
func TestRetries(t *testing.T) {
	r := steady.Retries()
	last := time.Duration(0)
	for range 50 { // fewer than the burst, which does not delay
		last = r.When(request("a", "b"))
	}
	if last != time.Minute {
		t.Errorf("it is tried again after %v", last)
	}
	if r.Forget(request("a", "b")); r.When(request("a", "b")) > time.Second {
		t.Error("a success does not count")
	}
}

// TestFits: namespaces that take what they can, one after another, leave a place to the next.
func TestFits(t *testing.T) {
	const places = 96
	taken := 0
	for _, want := range []int{48, 24, 12, 6, 3, 2, 1} {
		has := 0
		for steady.Fits(has, taken, places) {
			has++
			taken++
		}
		if has != want {
			t.Errorf("a namespace has %d places, not %d", has, want)
		}
	}
	if taken != places || steady.Fits(0, taken, places) {
		t.Errorf("%d of %d places are taken", taken, places)
	}
}

// TestShareWaits: each of many objects that find no worker asks a little later than the one before, and
// one that asks again does not count twice.
func TestShareWaits(t *testing.T) {
	hold, in := make(chan struct{}), make(chan struct{})
	r := steady.Share(1, worker(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		close(in)
		<-hold
		return reconcile.Result{}, nil
	}))
	var first sync.WaitGroup
	first.Go(func() { _, _ = r.Reconcile(t.Context(), request("flood", "first")) })
	<-in
	var last time.Duration
	const flood = 10_000
	for range 2 {
		for n := range flood {
			a, err := r.Reconcile(t.Context(), request("flood", fmt.Sprint(n)))
			if last = a.RequeueAfter; err != nil || last == 0 {
				t.Fatal(a, err)
			}
		}
		if rate := flood / last.Seconds(); rate > 1000 || rate < 100 {
			t.Errorf("a flood asks %.0f times a second", rate)
		}
	}
	close(hold)
	first.Wait()
}

// A store has a Pod, and a cache of it that is behind.
type store struct {
	client.Client
	pod, seen *corev1.Pod
}

func (s *store) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if s.seen == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	s.seen.DeepCopyInto(o.(*corev1.Pod))
	return nil
}

func (s *store) write(o client.Object) error {
	if o.GetResourceVersion() != s.pod.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("old"))
	}
	o.SetResourceVersion(o.GetResourceVersion() + "1")
	s.pod = o.(*corev1.Pod).DeepCopy()
	return nil
}

func (s *store) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	return s.write(o)
}

func (s *store) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	return s.write(o)
}

func (s *store) Status() client.SubResourceWriter { return statusOf{nil, s} }

type statusOf struct {
	client.SubResourceWriter
	s *store
}

func (s statusOf) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	return s.s.write(o)
}

func (s statusOf) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
	return s.s.write(o)
}

// TestFresh: what a controller has changed is a conflict until the cache has seen all of its changes. Changes of
// others, and writes that failed, are none.
func TestFresh(t *testing.T) {
	s := &store{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", ResourceVersion: "1"}}}
	s.seen = s.pod.DeepCopy()
	c, other := steady.Fresh(s), steady.Fresh(s)
	key := client.ObjectKeyFromObject(s.pod)
	read := func(c client.Client) (*corev1.Pod, error) { p := &corev1.Pod{}; return p, c.Get(t.Context(), key, p) }
	for n, write := range []func(p *corev1.Pod) error{
		func(p *corev1.Pod) error { return c.Status().Update(t.Context(), p) },
		func(p *corev1.Pod) error { return c.Update(t.Context(), p) },
		func(p *corev1.Pod) error {
			return c.Status().Patch(t.Context(), p, client.RawPatch(types.MergePatchType, nil))
		},
	} {
		p, err := read(c)
		if err != nil {
			t.Fatal(n, err)
		}
		first := s.pod
		if err := errors.Join(c.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, nil)), write(p)); err != nil {
			t.Fatal(n, err)
		}
		if write(first.DeepCopy()) == nil {
			t.Fatal("an old version was written")
		}
		for range 2 {
			if _, err := read(c); !apierrors.IsConflict(err) {
				t.Errorf("%d: what the cache has not seen: %v", n, err)
			}
		}
		if _, err := read(other); err != nil {
			t.Errorf("%d: another controller: %v", n, err)
		}
		if s.seen = s.pod; n == 1 {
			s.seen = nil // it was deleted
			if _, err := read(c); !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			s.seen = first // and made again, with a version that was used
			if _, err := read(c); err != nil {
				t.Error(err)
			}
			s.seen = s.pod
		}
	}
}

// TestMeant: a status alone is no reason to look.
func TestMeant(t *testing.T) {
	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1", ResourceVersion: "1", Generation: 1}}
	now := metav1.Now()
	for name, tt := range map[string]struct {
		change func(p *corev1.Pod)
		want   bool
	}{
		"status":        {func(p *corev1.Pod) { p.Status.Message = "other" }, false},
		"fields":        {func(p *corev1.Pod) { p.ManagedFields = []metav1.ManagedFieldsEntry{{}} }, false},
		"nothing":       {func(p *corev1.Pod) { p.ResourceVersion = "1" }, true}, // all are looked at again
		"spec":          {func(p *corev1.Pod) { p.Generation++ }, true},
		"uid":           {func(p *corev1.Pod) { p.UID = "2" }, true},
		"deleted":       {func(p *corev1.Pod) { p.DeletionTimestamp = &now }, true},
		"label":         {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, true},
		"annotation":    {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		"finalizer":     {func(p *corev1.Pod) { p.Finalizers = []string{"a"} }, true},
		"another owner": {func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Name: "a"}} }, true},
	} {
		p := old.DeepCopy()
		p.ResourceVersion = "2"
		if tt.change(p); steady.Meant().Update(event.UpdateEvent{ObjectOld: old, ObjectNew: p}) != tt.want {
			t.Errorf("%s: not %v", name, tt.want)
		}
	}
	if m := steady.Meant(); !m.Create(event.CreateEvent{Object: old}) || !m.Delete(event.DeleteEvent{Object: old}) {
		t.Error("beginnings and ends are looked at")
	}
}

type worker func(context.Context, reconcile.Request) (reconcile.Result, error)

func (w worker) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	return w(ctx, r)
}

// TestShare: objects of a namespace that wait for the server leave workers to others, and come again.
func TestShare(t *testing.T) {
	hold, in := make(chan struct{}), make(chan string, 10)
	r := steady.Share(4, worker(func(_ context.Context, q reconcile.Request) (reconcile.Result, error) {
		in <- q.Namespace
		if q.Namespace == "flood" {
			<-hold
		}
		return reconcile.Result{}, nil
	}))
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { _, _ = r.Reconcile(t.Context(), request("flood", "x")) })
		<-in
	}
	if a, err := r.Reconcile(t.Context(), request("flood", "y")); err != nil || a.RequeueAfter == 0 {
		t.Errorf("a third is worked on: %v %v", a, err)
	}
	if a, err := r.Reconcile(t.Context(), request("quiet", "z")); err != nil || a.RequeueAfter > 0 || <-in != "quiet" {
		t.Errorf("another namespace waits: %v %v", a, err)
	}
	close(hold)
	all.Wait()
	if a, err := r.Reconcile(t.Context(), request("flood", "y")); err != nil || a.RequeueAfter > 0 {
		t.Errorf("the place stays taken: %v %v", a, err)
	}
}

// TestKeep: while the API server is away for ten minutes, an operator that cannot start is started about
// twice a minute; after its return it runs, and a later end is followed at once.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, runs, good := time.Now(), 0, 0
		err := steady.Keep(ctx, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			runs++
			if time.Since(began) < 10*time.Minute {
				time.Sleep(time.Second)
				return errors.New("there is no API server")
			}
			if good++; good == 3 {
				cancel()
				return nil
			}
			before := time.Now()
			time.Sleep(time.Hour)
			if back := time.Since(began) - time.Since(before); good == 1 && back > 10*time.Minute+30*time.Second {
				t.Errorf("it runs again only %v after the beginning", back)
			}
			return errors.New("leader election lost")
		})
		if err != nil {
			t.Error(err)
		}
		if runs < 15 || runs > 30 {
			t.Errorf("%d runs", runs)
		}
		if d := time.Since(began); d > 2*time.Hour+11*time.Minute {
			t.Errorf("it took %v", d)
		}
	})
}

// TestKeepTellsOfSettings: a first run that ends at once is not repeated.
func TestKeepTellsOfSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := errors.New("the address is in use")
		if err := steady.Keep(t.Context(), slog.New(slog.DiscardHandler), func(context.Context) error {
			return want
		}); !errors.Is(err, want) {
			t.Error(err)
		}
	})
}

// TestConflict: an object that has changed since it was read is looked at again; other errors are errors.
func TestConflict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "turns"}, "one", errors.New("modified"))
	other := errors.New("other")
	for _, c := range []struct {
		gives, want error
		again       bool
	}{{conflict, nil, true}, {fmt.Errorf("status: %w", conflict), nil, true}, {other, other, false}, {nil, nil, false}} {
		r := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, c.gives
		})
		for _, r := range []reconcile.Reconciler{steady.Calm(r), steady.Share(2, r)} {
			got, err := r.Reconcile(t.Context(), request("a", "one"))
			if err != c.want || (got.RequeueAfter > 0) != c.again {
				t.Errorf("%v: %v, %v", c.gives, got, err)
			}
		}
	}
}
