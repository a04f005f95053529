package agents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"turnstone.dev/turnstone/internal/kube/steady"
)

// Reasons of claims that agent-sandbox's types do not name. Its clients know them.
const (
	reasonNoTemplate = "TemplateNotFound"
	reasonNoPool     = "WarmPoolNotFound"
	reasonMetadata   = "InvalidMetadata"
	reasonEnv        = "EnvVarsInjectionRejected"
	reasonVolumes    = "VolumeClaimTemplatesError"
	reasonNotReady   = "SandboxNotReady"
	reasonConflict   = "AdoptionConflict"
)

// labelDomain is agent-sandbox's default for labels that a claim may add.
const labelDomain = "sandbox.users.io"

// A refusal is why a claim has no sandbox.
type refusal struct {
	reason, why string
	final       bool // only a change of the claim helps
}

func (r *refusal) Error() string { return r.why }

// claims reconciles objects of the kind SandboxClaim.
type claims struct {
	o     *Options
	to    client.Client
	tell  teller
	ahead *ahead
}

// Reconcile implements reconcile.Reconciler.
func (r *claims) Reconcile(ctx context.Context, q ctrl.Request) (ctrl.Result, error) {
	c := &extv1.SandboxClaim{}
	if err := r.to.Get(ctx, q.NamespacedName, c); err != nil || !c.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err) // its sandbox goes by itself
	}
	t, err := r.template(ctx, c)
	var no *refusal
	if err != nil && !errors.As(err, &no) {
		return ctrl.Result{}, err
	}
	if err == nil && !r.o.serves(t.Spec.PodTemplate.Spec.RuntimeClassName) || err != nil && !r.o.Default {
		return ctrl.Result{}, nil // another controller's
	}
	was := c.Status.DeepCopy()
	after := time.Duration(0)
	switch _, over := r.left(c); {
	case over:
		deleted, err := r.expire(ctx, c)
		if err != nil || deleted {
			return ctrl.Result{}, err
		}
	case no == nil:
		err := r.grant(ctx, c, t)
		if errors.Is(err, errEarly) {
			return ctrl.Result{RequeueAfter: early}, nil
		}
		if err != nil && !errors.As(err, &no) {
			return ctrl.Result{}, err
		}
		if left, over := r.left(c); over { // since it has ended, which the status now says
			after = steady.Soon
		} else {
			after = left
		}
	}
	if no != nil {
		set(&c.Status.Conditions, c.Generation, sandboxv1.SandboxConditionReady, false, no.reason, no.why)
		if !no.final {
			after = r.o.again()
		}
	}
	if !same(was, &c.Status) {
		if err := r.to.Status().Update(ctx, c); err != nil {
			return result(err)
		}
		r.tell.claim(c, ready(was.Conditions), ready(c.Status.Conditions))
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// template returns the template of a claim's pool. The error is a refusal if there is none.
func (r *claims) template(ctx context.Context, c *extv1.SandboxClaim) (*extv1.SandboxTemplate, error) {
	p := &extv1.SandboxWarmPool{}
	k := client.ObjectKey{Namespace: c.Namespace, Name: c.Spec.WarmPoolRef.Name}
	if err := r.to.Get(ctx, k, p); apierrors.IsNotFound(err) {
		return nil, &refusal{reason: reasonNoPool, why: "there is no SandboxWarmPool " + k.Name}
	} else if err != nil {
		return nil, err
	}
	t := &extv1.SandboxTemplate{}
	k.Name = p.Spec.TemplateRef.Name
	if err := r.to.Get(ctx, k, t); apierrors.IsNotFound(err) {
		return nil, &refusal{reason: reasonNoTemplate, why: "there is no SandboxTemplate " + k.Name}
	} else if err != nil {
		return nil, err
	}
	return t, nil
}

// left returns the time to a claim's end, 0 if it has none, and whether it is over.
func (r *claims) left(c *extv1.SandboxClaim) (time.Duration, bool) {
	l := c.Spec.Lifecycle
	if l == nil {
		return 0, false
	}
	var ends []time.Time
	if l.ShutdownTime != nil {
		ends = append(ends, l.ShutdownTime.Time)
	}
	if f := meta.FindStatusCondition(c.Status.Conditions, string(sandboxv1.SandboxConditionFinished)); f != nil &&
		l.TTLSecondsAfterFinished != nil && f.Status == metav1.ConditionTrue {
		ends = append(ends, f.LastTransitionTime.Add(time.Duration(*l.TTLSecondsAfterFinished)*time.Second))
	}
	if len(ends) == 0 {
		return 0, false
	}
	left := time.Until(slices.MinFunc(ends, time.Time.Compare))
	return left, left <= 0
}

// expire ends what a claim has, and reports whether the claim itself is gone.
func (r *claims) expire(ctx context.Context, c *extv1.SandboxClaim) (deleted bool, err error) {
	options := []client.DeleteOption{client.Preconditions{UID: &c.UID}}
	switch c.Spec.Lifecycle.ShutdownPolicy {
	case extv1.ShutdownPolicyDelete:
		return true, client.IgnoreNotFound(r.to.Delete(ctx, c, options...))
	case extv1.ShutdownPolicyDeleteForeground:
		return true, client.IgnoreNotFound(r.to.Delete(ctx, c,
			append(options, client.PropagationPolicy(metav1.DeletePropagationForeground))...))
	}
	s := &sandboxv1.Sandbox{}
	if err := r.to.Get(ctx, key(c), s); err == nil && metav1.IsControlledBy(s, c) {
		err = r.to.Delete(ctx, s, client.Preconditions{UID: &s.UID})
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
	} else if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	c.Status.SandboxStatus = extv1.SandboxStatus{}
	set(&c.Status.Conditions, c.Generation, sandboxv1.SandboxConditionReady, false, extv1.ClaimExpiredReason,
		"its time is over")
	return false, nil
}

// early is how long a claim whose Sandbox is new has no status: mostly the next event says that it is
// ready, and a write is saved.
const early = 3 * time.Second

var errEarly = errors.New("the Sandbox is new")

// grant makes the Sandbox of a claim if it is missing, and the claim's status what the Sandbox's is.
func (r *claims) grant(ctx context.Context, c *extv1.SandboxClaim, t *extv1.SandboxTemplate) error {
	s := &sandboxv1.Sandbox{}
	err := r.to.Get(ctx, key(c), s)
	if apierrors.IsNotFound(err) {
		if s, err = r.sandbox(c, t); err != nil {
			return err
		}
		err = r.to.Create(ctx, s)
		if apierrors.IsAlreadyExists(err) {
			return errEarly // the cache has not seen it, and the event of another's calls nobody
		}
		if apierrors.IsInvalid(err) {
			return &refusal{reason: ReasonInvalid, why: err.Error(), final: true}
		}
		if err == nil {
			r.o.Metrics.claimed(c, t.Name)
		}
	}
	if err != nil {
		return err
	}
	if !metav1.IsControlledBy(s, c) {
		return &refusal{reason: reasonConflict, why: "there is a Sandbox " + s.Name + " that is not the claim's"}
	}
	r.ahead.look(s)
	c.Status.SandboxStatus = extv1.SandboxStatus{Name: s.Name, PodIPs: s.Status.PodIPs,
		ServiceFQDN: s.Status.ServiceFQDN}
	is := ready(s.Status.Conditions)
	if is.Reason == "" && len(c.Status.Conditions) == 0 && time.Since(s.CreationTimestamp.Time) < early {
		return errEarly
	}
	if is.Reason == "" || !s.DeletionTimestamp.IsZero() {
		is = metav1.Condition{Status: metav1.ConditionFalse, Reason: reasonNotReady, Message: "its Sandbox is not ready"}
	}
	set(&c.Status.Conditions, c.Generation, sandboxv1.SandboxConditionReady, is.Status == metav1.ConditionTrue,
		is.Reason, is.Message)
	if f := meta.FindStatusCondition(s.Status.Conditions, string(sandboxv1.SandboxConditionFinished)); f != nil {
		set(&c.Status.Conditions, c.Generation, sandboxv1.SandboxConditionFinished,
			f.Status == metav1.ConditionTrue, f.Reason, f.Message)
	} else {
		remove(&c.Status.Conditions, sandboxv1.SandboxConditionFinished)
	}
	return nil
}

// sandbox returns the Sandbox of a claim. It is ours from its beginning: that saves a write.
func (r *claims) sandbox(c *extv1.SandboxClaim, t *extv1.SandboxTemplate) (*sandboxv1.Sandbox, error) {
	s := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace,
		Finalizers: []string{Finalizer},
		Labels: map[string]string{sandboxv1.SandboxLaunchTypeLabel: sandboxv1.SandboxLaunchTypeWarm,
			extv1.SandboxIDLabel: string(c.UID)},
		Annotations: map[string]string{ClassAnnotation: RuntimeClass,
			sandboxv1.SandboxTemplateRefAnnotation: t.Name}}}
	t.Spec.SandboxBlueprint.DeepCopyInto(&s.Spec.SandboxBlueprint)
	pod := &s.Spec.PodTemplate
	if err := addMetadata(&pod.ObjectMeta, c.Spec.AdditionalPodMetadata); err != nil {
		return nil, err
	}
	if err := addEnv(&pod.Spec, c.Spec.Env, t.Spec.EnvVarsInjectionPolicy); err != nil {
		return nil, err
	}
	if err := addVolumes(&s.Spec.SandboxBlueprint, c.Spec.VolumeClaimTemplates,
		t.Spec.VolumeClaimTemplatesPolicy); err != nil {
		return nil, err
	}
	if n := t.Spec.NetworkPolicy; n != nil && t.Spec.NetworkPolicyManagement != extv1.NetworkPolicyManagementUnmanaged {
		return nil, &refusal{reason: ReasonInvalid, final: true, why: "networkPolicy: the server's own rules count; " +
			"set networkPolicyManagement: Unmanaged to accept them"}
	}
	pod.ObjectMeta.Labels = with(pod.ObjectMeta.Labels, extv1.SandboxIDLabel, string(c.UID))
	err := controllerutil.SetControllerReference(c, s, r.to.Scheme())
	return s, err
}

func with(m map[string]string, k, v string) map[string]string {
	if m == nil {
		m = make(map[string]string)
	}
	m[k] = v
	return m
}

// addMetadata adds labels and annotations that a claim asks for.
func addMetadata(to *sandboxv1.PodMetadata, more sandboxv1.PodMetadata) error {
	for _, k := range slices.Sorted(maps.Keys(more.Labels)) {
		domain, _, ok := strings.Cut(k, "/")
		if !ok || domain != labelDomain && !strings.HasSuffix(domain, "."+labelDomain) {
			return &refusal{reason: reasonMetadata, final: true,
				why: fmt.Sprintf("the label %.80q is not below %s", k, labelDomain)}
		}
		to.Labels = with(to.Labels, k, more.Labels[k])
	}
	for _, k := range slices.Sorted(maps.Keys(more.Annotations)) {
		domain, _, _ := strings.Cut(k, "/")
		for _, of := range []string{"kubernetes.io", "k8s.io", "x-k8s.io"} {
			if domain == of || strings.HasSuffix(domain, "."+of) {
				return &refusal{reason: reasonMetadata, final: true,
					why: fmt.Sprintf("the annotation %.80q is the system's", k)}
			}
		}
		to.Annotations = with(to.Annotations, k, more.Annotations[k])
	}
	return nil
}

// addEnv adds variables that a claim asks for.
func addEnv(pod *corev1.PodSpec, more []extv1.EnvVar, policy extv1.EnvVarsInjectionPolicy) error {
	refuse := func(format string, args ...any) error {
		return &refusal{reason: reasonEnv, final: true, why: fmt.Sprintf(format, args...)}
	}
	if len(more) > 0 && (policy == "" || policy == extv1.EnvVarsInjectionPolicyDisallowed) {
		return refuse("the template does not allow variables of claims")
	}
	for _, e := range more {
		n := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool {
			return e.ContainerName == "" || c.Name == e.ContainerName
		})
		if n < 0 {
			return refuse("the template has no container %.80q", e.ContainerName)
		}
		env := &pod.Containers[n].Env
		at := slices.IndexFunc(*env, func(v corev1.EnvVar) bool { return v.Name == e.Name })
		switch {
		case at < 0:
			*env = append(*env, corev1.EnvVar{Name: e.Name, Value: e.Value})
		case policy != extv1.EnvVarsInjectionPolicyOverrides:
			return refuse("the template has the variable %.80q, and does not allow another value", e.Name)
		default:
			(*env)[at] = corev1.EnvVar{Name: e.Name, Value: e.Value}
		}
	}
	return nil
}

// addVolumes adds volumes that a claim asks for.
func addVolumes(to *sandboxv1.SandboxBlueprint, more []sandboxv1.PersistentVolumeClaimTemplate,
	policy extv1.VolumeClaimTemplatesPolicy) error {
	refuse := func(format string, args ...any) error {
		return &refusal{reason: reasonVolumes, final: true, why: fmt.Sprintf(format, args...)}
	}
	if len(more) > 0 && (policy == "" || policy == extv1.VolumeClaimTemplatesPolicyDisallowed) {
		return refuse("the template does not allow volumes of claims")
	}
	for _, v := range more {
		at := slices.IndexFunc(to.VolumeClaimTemplates, func(o sandboxv1.PersistentVolumeClaimTemplate) bool {
			return o.Name == v.Name
		})
		switch {
		case at < 0:
			to.VolumeClaimTemplates = append(to.VolumeClaimTemplates, v)
		case policy != extv1.VolumeClaimTemplatesPolicyOverrides:
			return refuse("the template has the volume %.80q, and does not allow another", v.Name)
		default:
			to.VolumeClaimTemplates[at] = v
		}
	}
	return nil
}
