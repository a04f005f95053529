package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/kubetest"
)

// policies applies the admission policies of a file of manifests.
func policies(ctx context.Context, t *testing.T, to client.Client, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	all, err := kubetest.Objects(text)
	must(t, err)
	n := 0
	for _, o := range all {
		if strings.HasPrefix(o.GetKind(), "ValidatingAdmission") || o.GetKind() == "RuntimeClass" {
			must(t, to.Create(ctx, o))
			n++
		}
	}
	if n < 2 {
		t.Fatalf("%s has no policy", file)
	}
}

// TestAdmission: objects and pods that ask for a volume of the cluster are refused when they are made, with what to use
// instead, and all others are taken.
func TestAdmission(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts an API server")
	}
	c, ctx := kubetest.Run(t, "../.."), t.Context()
	cfg, err := c.Config(kubetest.Admin)
	must(t, err)
	scheme, err := agents.Scheme()
	must(t, err)
	to, err := client.New(cfg, client.Options{Scheme: scheme})
	must(t, err)
	claim := func(name string) []corev1.Volume {
		return []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}
	n := 0
	object := func(class string, volumes []corev1.Volume, templates ...string) sandboxv1.SandboxBlueprint {
		var b sandboxv1.SandboxBlueprint
		b.PodTemplate.Spec = corev1.PodSpec{Volumes: volumes, Containers: []corev1.Container{{Name: "main", Image: "i"}}}
		if class != "" {
			b.PodTemplate.Spec.RuntimeClassName = &class
		}
		for _, name := range templates {
			var v sandboxv1.PersistentVolumeClaimTemplate
			v.Name = name
			b.VolumeClaimTemplates = append(b.VolumeClaimTemplates, v)
		}
		return b
	}
	meta := func() metav1.ObjectMeta {
		n++
		return metav1.ObjectMeta{Namespace: "default", Name: "o-" + string(rune('a'+n))}
	}
	sandbox := func(b sandboxv1.SandboxBlueprint) client.Object {
		s := &sandboxv1.Sandbox{ObjectMeta: meta()}
		s.Spec.SandboxBlueprint = b
		return s
	}
	template := func(b sandboxv1.SandboxBlueprint) client.Object {
		s := &extv1.SandboxTemplate{ObjectMeta: meta()}
		s.Spec.SandboxBlueprint = b
		return s
	}
	pod := func(class string, readOnly bool, mount corev1.VolumeMount) client.Object {
		p := &corev1.Pod{ObjectMeta: meta()}
		p.Spec = object(class, claim("mine")).PodTemplate.Spec
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = readOnly
		mount.Name, mount.MountPath = "data", "/data"
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{mount, {Name: "scratch", MountPath: "/scratch"}}
		return p
	}
	before := sandbox(object("turnstone", claim("mine"))) // was there before the policy
	must(t, to.Create(ctx, before))
	policies(ctx, t, to, "../../packaging/kubernetes/turnstone.yaml")
	policies(ctx, t, to, "../../packaging/kubernetes/runtimeclass.yaml")
	const own, readOnly = "name it in volumeClaimTemplates", "mount it with readOnly"
	for _, c := range []struct {
		what   string
		object client.Object
		want   string // empty: it is taken
	}{
		{"a Sandbox with a claim", sandbox(object("turnstone", claim("mine"))), own},
		{"of no class", sandbox(object("", claim("mine"))), own},
		{"of another class", sandbox(object("other", claim("mine"))), ""},
		{"with a template of the claim", sandbox(object("turnstone", claim("mine"), "mine")), ""},
		{"with a template of another claim", sandbox(object("turnstone", claim("mine"), "other")), own},
		{"without a claim", sandbox(object("turnstone", claim("mine")[1:])), ""},
		{"without volumes", sandbox(object("turnstone", nil)), ""},
		{"a SandboxTemplate with a claim", template(object("turnstone", claim("mine"))), own},
		{"a SandboxTemplate without", template(object("turnstone", nil)), ""},
		{"a pod that may write", pod("turnstone", false, corev1.VolumeMount{}), readOnly},
		{"a pod that mounts it read-only", pod("turnstone", false, corev1.VolumeMount{ReadOnly: true}), ""},
		{"a pod whose volume is read-only", pod("turnstone", true, corev1.VolumeMount{}), ""},
	} {
		var err error
		refused := kubetest.Poll(time.Minute, func() bool { // the API server hears of its policies later
			err = to.Create(ctx, c.object)
			if err == nil && c.want != "" {
				must(t, to.Delete(ctx, c.object))
				c.object.SetResourceVersion("")
				return false
			}
			return true
		})
		if !refused || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
	// an object from before the policy can be changed, but for its volumes, and deleted
	must(t, to.Get(ctx, client.ObjectKeyFromObject(before), before))
	controllerutil.AddFinalizer(before, agents.Finalizer)
	must(t, to.Update(ctx, before))
	must(t, to.Delete(ctx, before))
	must(t, to.Get(ctx, client.ObjectKeyFromObject(before), before))
	controllerutil.RemoveFinalizer(before, agents.Finalizer)
	must(t, to.Update(ctx, before))
}
