package agents

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone/internal/api"
	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
)

// Reports are the sandboxes of a namespace that no object has asked for. A Server may implement it.
type Reports interface {
	// Live returns the sandboxes of a namespace that are ready or run.
	Live(ctx context.Context, namespace string) ([]*v1.Sandbox, error)
	// End ends a sandbox, whoever made it.
	End(ctx context.Context, namespace, id string) error
}

// Names of ours in reports.
const (
	// ReportLabel marks a Sandbox that reports what is there, and asks for nothing.
	ReportLabel = "turnstone.dev/report"
	// SandboxAnnotation and NodeAnnotation name the sandbox of a report, and its node.
	SandboxAnnotation = "turnstone.dev/sandbox"
	NodeAnnotation    = "turnstone.dev/node"

	reportClass = "turnstone-report" // value of ClassAnnotation: no controller serves it
)

// Follow says how objects follow sandboxes that were claimed at the server. Zero values select the
// defaults.
type Follow struct {
	Every time.Duration // between two looks: 10 s
	Age   time.Duration // of sandboxes that are reported: shorter ones cost no write: 10 s
	Rate  float64       // writes in a second: 20
}

func (f *Follow) setDefaults() {
	if f.Every == 0 {
		f.Every = 10 * time.Second
	}
	if f.Age == 0 {
		f.Age = 10 * time.Second
	}
	if f.Rate == 0 {
		f.Rate = 20
	}
}

// A follower writes a report for each sandbox, deletes it when the sandbox has ended, and ends the
// sandbox when the report was deleted. It keeps what it has seen in memory: a report that is deleted
// while no operator runs is written again.
type follower struct {
	o    *Options
	f    Follow
	from Reports
	to   client.Client
	live client.Reader // not the cache
	rate *rate.Limiter
	log  *slog.Logger

	seen    map[reported]bool // sandboxes whose report was in the cache
	written map[reported]bool // and those whose report was created and not seen yet
	known   map[reported]bool // what this look has found
}

// reported is a sandbox, or what a report of its namespace calls one: a report that a user wrote says
// nothing of other namespaces.
type reported struct{ namespace, id string }

func newFollower(o *Options, from Reports, to client.Client, live client.Reader) *follower {
	f := *o.Follow
	f.setDefaults()
	return &follower{o: o, f: f, from: from, to: to, live: live, log: o.Log,
		rate: rate.NewLimiter(rate.Limit(f.Rate), 1), seen: map[reported]bool{}, written: map[reported]bool{}}
}

// Start implements manager.Runnable. It runs where the leader is.
func (r *follower) Start(ctx context.Context) error {
	t := time.NewTicker(r.f.Every)
	defer t.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("sandboxes were not reported", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// look looks at all namespaces once.
func (r *follower) look(ctx context.Context) error {
	all := &corev1.NamespaceList{}
	if err := r.live.List(ctx, all); err != nil {
		return err
	}
	r.known = map[reported]bool{}
	complete := true
	for _, n := range all.Items {
		if err := r.namespace(ctx, n.Name); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			complete = false
			r.log.Warn("the sandboxes of a namespace were not reported", "namespace", n.Name, "error", err)
		}
	}
	if complete {
		gone := func(k reported, _ bool) bool { return !r.known[k] }
		maps.DeleteFunc(r.seen, gone)
		maps.DeleteFunc(r.written, gone)
	}
	return nil
}

// namespace makes the reports of a namespace agree with its sandboxes. What is written at one look is
// bounded, so that the next decides by what is there then.
func (r *follower) namespace(ctx context.Context, namespace string) error {
	boxes, err := r.from.Live(ctx, namespace)
	if err != nil {
		return err
	}
	list := &sandboxv1.SandboxList{}
	if err := r.to.List(ctx, list, client.InNamespace(namespace), client.HasLabels{ReportLabel}); err != nil {
		return err
	}
	there := make(map[string]bool, len(boxes))
	for _, b := range boxes {
		there[b.SandboxId], r.known[reported{namespace, b.SandboxId}] = true, true
	}
	has := make(map[string]bool, len(list.Items))
	left := int(r.f.Rate*r.f.Every.Seconds()) + 1
	for n := range list.Items {
		s := &list.Items[n]
		id := s.Annotations[SandboxAnnotation]
		if reportName(id) != s.Name {
			continue // not written here
		}
		k := reported{namespace, id}
		has[id], r.known[k] = true, true
		// A finalizer of somebody else may keep one that was deleted: it is deleted once.
		if r.seen[k] = true; !there[id] && left > 0 && s.DeletionTimestamp.IsZero() {
			left--
			if err := r.remove(ctx, s); err != nil {
				return err
			}
		}
		delete(r.written, k)
	}
	for _, b := range boxes {
		if strings.HasPrefix(b.ManagedBy, managedPrefix) || has[b.SandboxId] {
			continue
		}
		switch k := (reported{namespace, b.SandboxId}); {
		case r.seen[k], r.written[k]:
			if err := r.deleted(ctx, k); err != nil {
				return err
			}
		case left > 0 && time.Since(b.Created.AsTime()) >= r.f.Age:
			left--
			if err := r.write(ctx, namespace, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes the report of a sandbox.
func (r *follower) write(ctx context.Context, namespace string, b *v1.Sandbox) error {
	if err := r.rate.Wait(ctx); err != nil {
		return err
	}
	err := r.to.Create(ctx, report(namespace, b))
	if err == nil || apierrors.IsAlreadyExists(err) {
		r.written[reported{namespace, b.SandboxId}] = true
		return nil
	}
	return err
}

// remove removes the report of a sandbox that has ended.
func (r *follower) remove(ctx context.Context, s *sandboxv1.Sandbox) error {
	if err := r.rate.Wait(ctx); err != nil {
		return err
	}
	err := client.IgnoreNotFound(r.to.Delete(ctx, s, client.Preconditions{UID: &s.UID}))
	if err == nil {
		delete(r.seen, reported{s.Namespace, s.Annotations[SandboxAnnotation]})
	}
	return err
}

// deleted ends the sandbox whose report was deleted, unless the cache alone does not have the report.
// If the end is refused, the sandbox is reported again.
func (r *follower) deleted(ctx context.Context, k reported) error {
	at := client.ObjectKey{Namespace: k.namespace, Name: reportName(k.id)}
	if err := r.live.Get(ctx, at, &sandboxv1.Sandbox{}); !apierrors.IsNotFound(err) {
		return err
	}
	r.log.Info("ending a sandbox whose report was deleted", "namespace", k.namespace, "sandbox", k.id)
	if err := r.from.End(ctx, k.namespace, k.id); err != nil {
		r.log.Warn("a sandbox whose report was deleted was not ended", "namespace", k.namespace, "sandbox", k.id,
			"error", err)
	}
	delete(r.seen, k)
	delete(r.written, k)
	return nil
}

// reportName is the name of the report of a sandbox.
func reportName(id string) string { return strings.ReplaceAll(id, "_", "-") }

// report returns the object that reports a sandbox. It has no status, which would be another write.
func report(namespace string, b *v1.Sandbox) *sandboxv1.Sandbox {
	class, image := RuntimeClass, b.Template
	if api.IsTemplateName(image) {
		image = TemplatePrefix + image
	}
	s := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: reportName(b.SandboxId), Namespace: namespace,
		Labels: map[string]string{ReportLabel: "true"},
		Annotations: map[string]string{ClassAnnotation: reportClass, SandboxAnnotation: b.SandboxId,
			NodeAnnotation: b.Node}}}
	s.Spec.PodTemplate.Spec = corev1.PodSpec{RuntimeClassName: &class,
		Containers: []corev1.Container{{Name: "sandbox", Image: image}}}
	return s
}
