package agents_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
)

// TestContainer: what becomes of a container is in the status by events: no look comes by itself.
func TestContainer(t *testing.T) {
	w := newWorld(t)
	w.again = time.Hour
	w.operator(w.server, nil)
	s := sandbox("told")
	s.Spec.PodTemplate.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.server.says(agents.Process{Reason: "CrashLoopBackOff", Message: "it starts again later", Restarts: 3})
	w.becomes(s, "CrashLoopBackOff")
	if c := w.condition(s, "PodScheduled"); c.Status != metav1.ConditionTrue {
		t.Errorf("it is scheduled: %+v", c)
	}
	w.server.says(agents.Process{Message: "its readinessProbe fails", Restarts: 4})
	w.becomes(s, sandboxv1.SandboxReasonDependenciesNotReady)
	w.server.says(agents.Process{Ready: true, Restarts: 4})
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.server.says(agents.Process{Ended: true, Message: "the process has ended (Completed)", Restarts: 4})
	w.becomes(s, sandboxv1.SandboxReasonPodSucceeded)
	if c := w.condition(s, "Finished"); c.Status != metav1.ConditionTrue || c.Reason != sandboxv1.SandboxReasonPodSucceeded {
		t.Errorf("finished: %+v", c)
	}
	past := metav1.NewTime(time.Now().Add(-time.Minute))
	s.Spec.ShutdownTime = &past
	w.must(w.admin.Update(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonExpired)
	if c := w.condition(s, "Finished"); c.Status != metav1.ConditionTrue || c.Reason != sandboxv1.SandboxReasonPodSucceeded {
		t.Errorf("finished, after its time: %+v", c)
	}
	// The sandbox itself ends, which its lost connection says.
	two := sandbox("lost")
	w.must(w.admin.Delete(t.Context(), s))
	w.becomes(s, "gone")
	w.must(w.admin.Create(t.Context(), two))
	w.becomes(two, sandboxv1.SandboxReasonDependenciesReady)
	w.server.mu.Lock()
	for _, b := range w.server.boxes {
		b.State = v1.SandboxState_SANDBOX_STATE_FAILED
	}
	w.server.mu.Unlock()
	w.server.says(agents.Process{Ready: true, Lost: 1})
	w.becomes(two, sandboxv1.SandboxReasonPodFailed)
	w.must(w.admin.Delete(t.Context(), two))
	w.becomes(two, "gone")
}

// TestToldAtOnce: of a container that says two things at once the last one is in the status, although the cache shows
// the object once more as it was before the first was written.
func TestToldAtOnce(t *testing.T) {
	w := newWorld(t)
	w.again = time.Hour
	const first = "its probe has not answered"
	var read, shown atomic.Pointer[sandboxv1.Sandbox]
	var written atomic.Bool
	w.reads = func(o client.Object) {
		s, ok := o.(*sandboxv1.Sandbox)
		if !ok {
			return
		}
		if old := shown.Swap(nil); old != nil {
			old.DeepCopyInto(s)
		}
		read.Store(s.DeepCopy())
	}
	w.operator(w.server, func(o client.Object) error {
		s, ok := o.(*sandboxv1.Sandbox)
		if !ok || s.ResourceVersion == read.Load().ResourceVersion { // it comes
			return nil
		}
		if c := meta.FindStatusCondition(s.Status.Conditions, "Ready"); c != nil && c.Message == first {
			shown.Store(read.Load())
			written.Store(true)
			w.server.says(agents.Process{Ready: true})
		}
		return nil
	})
	s := sandbox("told")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.server.says(agents.Process{Message: first})
	w.until("the first is written", written.Load)
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
}

// TestUnchanged: looks at a container that stays as it is cost no write.
func TestUnchanged(t *testing.T) {
	w := newWorld(t)
	w.again = 20 * time.Millisecond
	var looks atomic.Int64
	w.server.step = func(what string, after bool) error {
		if what == "list" && !after {
			looks.Add(1)
		}
		return nil
	}
	w.operator(w.server, nil)
	s := sandbox("unchanged")
	w.must(w.admin.Create(t.Context(), s))
	for _, p := range []agents.Process{{Reason: "CrashLoopBackOff", Message: "it starts again later"}, {Message: "a probe fails"},
		{Ended: true, Failed: true, Message: "it has ended"}} {
		w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
		w.server.says(p)
		w.until("it is not ready", func() bool { return w.condition(s, "Ready").Status == metav1.ConditionFalse })
		w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s))
		was, before := s.ResourceVersion, looks.Load()
		w.until("it was looked at", func() bool { return looks.Load() > before+100 }) // for more than a second
		w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s))
		if s.ResourceVersion != was {
			t.Errorf("%+v was written again", p)
		}
		w.server.says(agents.Process{Ready: true})
	}
}

// TestCommand: command and args are those of a pod, with the image's own.
func TestCommand(t *testing.T) {
	w := newWorld(t)
	w.operator(w.server, nil)
	for name, c := range map[string]struct {
		image         string
		command, args []string
		want          []string
		fromImage     bool
	}{
		"neither":    {"registry.example/x", nil, nil, nil, true},
		"args":       {"registry.example/x", nil, []string{"a", "$(A)", "$$(A)", "$(NONE)"}, []string{"a", "b", "$(A)", "$(NONE)"}, true},
		"command":    {"registry.example/x", []string{"c"}, nil, []string{"c"}, false},
		"both":       {"registry.example/x", []string{"c"}, []string{"a"}, []string{"c", "a"}, false},
		"templated":  {"turnstone.dev/template/base", nil, []string{"a"}, []string{"a"}, true},
		"by-nothing": {"turnstone.dev/template/base", nil, nil, nil, false},
	} {
		s := sandbox(name)
		to := &s.Spec.PodTemplate.Spec.Containers[0]
		to.Image, to.Command, to.Args = c.image, c.command, c.args
		w.must(w.admin.Create(t.Context(), s))
		w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
		for _, b := range w.server.all() {
			if len(b.main) == 0 && c.want == nil && !c.fromImage {
				continue // it is ready without an answer
			}
			if m := b.main[0]; !slices.Equal(m.Argv, c.want) || m.Image != c.fromImage {
				t.Errorf("%s: %+v", name, m)
			}
		}
		w.must(w.admin.Delete(t.Context(), s))
		w.becomes(s, "gone")
	}
}

// TestProbesOfObjects: probes are as a pod has them, within bounds.
func TestProbesOfObjects(t *testing.T) {
	w := newWorld(t)
	w.operator(w.server, nil)
	s := sandbox("probes")
	c := &s.Spec.PodTemplate.Spec.Containers[0]
	c.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}
	c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 3, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "/up", Port: intstr.FromString("web"), HTTPHeaders: []corev1.HTTPHeader{{Name: "A", Value: "b"}}}}}
	c.LivenessProbe = &corev1.Probe{InitialDelaySeconds: 7, FailureThreshold: 9, ProbeHandler: corev1.ProbeHandler{
		TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(81)}}}
	c.StartupProbe = &corev1.Probe{TimeoutSeconds: 5, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/up"}}}}
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	m := w.server.all()[0].main[0]
	r, l, u := m.Readiness, m.Liveness, m.Startup
	if r.HTTP.Port != 8080 || r.HTTP.Path != "/up" || r.HTTP.Values[0] != "b" || r.Period != 3*time.Second ||
		r.Timeout != time.Second || r.Failure != 3 || l.TCP != 81 || l.Delay != 7*time.Second || l.Failure != 9 ||
		l.Period != 10*time.Second || len(u.Exec) != 3 || u.Timeout != 5*time.Second || m.Grace != 30*time.Second {
		t.Errorf("the probes are %+v %+v %+v of %+v", r, l, u, m)
	}
	w.must(w.admin.Delete(t.Context(), s))
	for name, p := range map[string]corev1.ProbeHandler{
		"grpc":    {GRPC: &corev1.GRPCAction{Port: 70000}},
		"host":    {HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Port: intstr.FromInt32(80)}},
		"unnamed": {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}},
		"nothing": {},
	} {
		s := sandbox(name)
		s.Spec.PodTemplate.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: p}
		w.must(w.admin.Create(t.Context(), s))
		w.becomes(s, agents.ReasonInvalid)
		w.must(w.admin.Delete(t.Context(), s))
	}
}

// references lets the operator read what objects of a namespace name, as the chart does.
func (w *world) references(namespace string) {
	w.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "references", Namespace: namespace},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"get"}}}}
	w.must(w.admin.Create(w.Context(), role))
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "references"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "turn-operator"}}}
	binding.ResourceVersion = ""
	w.must(w.admin.Create(w.Context(), binding))
	w.Cleanup(func() {
		for _, o := range []client.Object{binding, role} {
			if err := w.admin.Delete(context.Background(), o); err != nil {
				w.Error(err)
			}
		}
	})
}

// TestInputs: a container gets what its object names of the ConfigMaps and Secrets of its own namespace, where
// the operator may read them, and the server sees none of it.
func TestInputs(t *testing.T) {
	w := newWorld(t)
	w.operator(w.server, nil)
	meta := metav1.ObjectMeta{Name: "inputs", Namespace: "default"}
	config := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"COLOR": "green", "not-a.name": "x", "A": "theirs"},
		BinaryData: map[string][]byte{"blob": {0, 1}}}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"password": []byte("sesame"), "key": []byte("pem")}}
	for _, o := range []client.Object{config, secret} {
		w.must(w.admin.Create(t.Context(), o))
		t.Cleanup(func() { _ = w.admin.Delete(context.Background(), o) })
	}
	mode, yes := int32(0o400), true
	of := func(name string) *sandboxv1.Sandbox {
		s := sandbox(name)
		pod := &s.Spec.PodTemplate.Spec
		c := &pod.Containers[0]
		ref := corev1.LocalObjectReference{Name: "inputs"}
		c.EnvFrom = []corev1.EnvFromSource{{Prefix: "MY_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}},
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "no"}, Optional: &yes}}}
		c.Env = append(c.Env,
			corev1.EnvVar{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: ref, Key: "password"}}},
			corev1.EnvVar{Name: "NONE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: ref, Key: "none", Optional: &yes}}},
			corev1.EnvVar{Name: "URL", Value: "db://$(A):$(PASSWORD)@$(MY_COLOR)/$(HOST)"})
		c.Args = []string{"$(URL)"}
		pod.Volumes = []corev1.Volume{
			{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref}}},
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "inputs",
				DefaultMode: &mode, Items: []corev1.KeyToPath{{Key: "key", Path: "../../tls/key.pem"}}}}}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "c", MountPath: "/etc/config"}, {Name: "s", MountPath: "/etc/keys"},
			{Name: "c", MountPath: "/etc/color", SubPath: "COLOR"}}
		return s
	}
	s := of("without-rights")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, "CreateContainerConfigError")
	if text := w.condition(s, "Ready").Message; !strings.Contains(text, "may not read") {
		t.Errorf("it says %q", text)
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.becomes(s, "gone")
	w.references("default")
	s = of("with-rights")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	b := w.server.all()[0]
	want := []string{"COLOR=green", "MY_A=theirs", "MY_COLOR=green", "PASSWORD=sesame", "URL=db://b:sesame@green/$(HOST)"}
	if !slices.Equal(b.inputs.Env, want) || !slices.Equal(b.inputs.Argv, []string{"sleep", "1000", "db://b:sesame@green/$(HOST)"}) {
		t.Errorf("its inputs are %+v", b.inputs)
	}
	if text := b.request.String(); strings.Contains(text, "sesame") || strings.Contains(text, "green") || b.request.Env["A"] != "b" {
		t.Errorf("the server was told %s", text)
	}
	files := map[string]string{}
	for _, f := range b.inputs.Files {
		files[f.Path] = string(f.Content)
		if f.Path == "/etc/keys/tls/key.pem" && f.Mode != 0o400 {
			t.Errorf("its mode is %o", f.Mode)
		}
	}
	if len(files) != 6 || files["/etc/config/COLOR"] != "green" || files["/etc/config/blob"] != "\x00\x01" ||
		files["/etc/keys/tls/key.pem"] != "pem" || files["/etc/color"] != "green" {
		t.Errorf("its files are %q", files)
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.becomes(s, "gone")
	// A claim of the cluster is refused, with the way that there is.
	s = sandbox("storage")
	s.Spec.PodTemplate.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"}}}}
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, agents.ReasonInvalid)
	if text := w.condition(s, "Ready").Message; !strings.Contains(text, "volumeClaimTemplates") {
		t.Errorf("it says %q", text)
	}
}

// TestForeground: a claim that waits for its Sandbox to go first is followed by it.
func TestForeground(t *testing.T) {
	w := newWorld(t)
	w.operator(w.server, nil)
	meta := metav1.ObjectMeta{Name: "foreground", Namespace: "default"}
	none := int32(0)
	tmpl := &extv1.SandboxTemplate{ObjectMeta: meta}
	tmpl.Spec.SandboxBlueprint = sandbox("").Spec.SandboxBlueprint
	pool := &extv1.SandboxWarmPool{ObjectMeta: meta, Spec: extv1.SandboxWarmPoolSpec{Replicas: &none,
		TemplateRef: extv1.SandboxTemplateRef{Name: meta.Name}}}
	claim := &extv1.SandboxClaim{ObjectMeta: meta, Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: meta.Name}}}
	for _, o := range []client.Object{tmpl, pool, claim} {
		w.must(w.admin.Create(t.Context(), o))
	}
	w.becomes(claim, sandboxv1.SandboxReasonDependenciesReady)
	w.must(w.admin.Delete(t.Context(), claim, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	w.becomes(&sandboxv1.Sandbox{ObjectMeta: meta}, "gone")
	if all := w.server.all(); len(all) != 0 {
		t.Errorf("sandboxes are left: %v", all)
	}
	// What collects garbage in a cluster is not here.
	w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
	claim.Finalizers = nil
	w.must(w.admin.Update(t.Context(), claim))
	w.becomes(claim, "gone")
}
