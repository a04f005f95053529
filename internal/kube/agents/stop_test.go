package agents_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone/internal/kube/agents"
)

// stops returns how often containers were stopped.
func (s *server) stops() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.stopped)
}

// TestStops: the container of an object that goes is stopped first, by its hook, within its grace.
func TestStops(t *testing.T) {
	w := newWorld(t)
	w.server.holdStop = make(chan struct{})
	w.operator(w.server, nil)
	seconds := int64(7)
	s := sandbox("stops")
	pod := &s.Spec.PodTemplate.Spec
	pod.TerminationGracePeriodSeconds = &seconds
	pod.Containers[0].Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}},
		PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}}
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	if m := w.server.all()[0].main[0]; m.PostStart.Sleep != 3*time.Second || m.Stop {
		t.Errorf("%+v", m)
	}
	w.must(w.admin.Delete(t.Context(), s))
	w.until("its deletion is seen", func() bool {
		return w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s) == nil && s.DeletionTimestamp != nil
	})
	if len(w.server.all()) != 1 {
		t.Error("its sandbox has ended before its container")
	}
	close(w.server.holdStop)
	w.becomes(s, "gone")
	if w.server.stops() != 1 || !slices.Equal(w.server.stopped[0].PreStop.Exec, []string{"bye"}) || w.server.stopped[0].Grace != 7*time.Second {
		t.Errorf("stopped were %+v", w.server.stopped)
	}
	// So is one whose time is up, and not one that is paused, or that starts nothing.
	s = sandbox("expires")
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	past := metav1.NewTime(time.Now().Add(-time.Second))
	w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s))
	s.Spec.ShutdownTime = &past
	w.must(w.admin.Update(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonExpired)
	w.until("its sandbox has ended", func() bool { return len(w.server.all()) == 0 })
	if n := w.server.stops(); n != 2 {
		t.Errorf("%d were stopped", n)
	}
	for name, change := range map[string]func(*sandboxv1.Sandbox){
		"paused": func(s *sandboxv1.Sandbox) { s.Spec.OperatingMode = sandboxv1.SandboxOperatingModeSuspended },
		"idle": func(s *sandboxv1.Sandbox) {
			c := &s.Spec.PodTemplate.Spec.Containers[0]
			c.Image, c.Command = "turnstone.dev/template/base", nil
		},
	} {
		s := sandbox(name)
		if name == "idle" {
			change(s)
		}
		w.must(w.admin.Create(t.Context(), s))
		w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
		if name == "paused" {
			w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(s), s))
			change(s)
			w.must(w.admin.Update(t.Context(), s))
			w.becomes(s, sandboxv1.SandboxReasonSuspended)
		}
		w.must(w.admin.Delete(t.Context(), s))
		w.becomes(s, "gone")
	}
	if n := w.server.stops(); n != 2 {
		t.Errorf("%d were stopped", n)
	}
}

// TestStopIsBounded: a container that does not end ends with its sandbox, after its grace.
func TestStopIsBounded(t *testing.T) {
	w := newWorld(t)
	w.server.holdStop = make(chan struct{})
	t.Cleanup(func() { close(w.server.holdStop) })
	w.operator(w.server, nil)
	s := sandbox("hangs")
	none := int64(0)
	s.Spec.PodTemplate.Spec.TerminationGracePeriodSeconds = &none
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.must(w.admin.Delete(t.Context(), s))
	w.becomes(s, "gone")
}

// TestInitContainers: they run before the container, with variables, files and directories as in a pod.
func TestInitContainers(t *testing.T) {
	w := newWorld(t)
	w.operator(w.server, nil)
	s := sandbox("inits")
	pod := &s.Spec.PodTemplate.Spec
	main := &pod.Containers[0]
	user, gib := int64(1000), resource.MustParse("3Gi")
	pod.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	main.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	main.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 50051}}}
	pod.InitContainers = []corev1.Container{
		{Name: "one", Image: main.Image, Command: []string{"sh", "-c", "$(WHO) $$(WHO)"}, Env: []corev1.EnvVar{{Name: "WHO", Value: "me"}},
			SecurityContext: &corev1.SecurityContext{RunAsUser: &user}, VolumeMounts: main.VolumeMounts,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: gib}}},
		{Name: "two", Image: main.Image, WorkingDir: "/srv", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data/"}}}}
	w.must(w.admin.Create(t.Context(), s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	b := w.server.all()[0]
	m := b.main[0]
	one, two := m.Inits[0], m.Inits[1]
	if !slices.Equal(one.Argv, []string{"sh", "-c", "me $(WHO)"}) || one.Image || one.User != "1000" || one.Name != "one" ||
		!slices.Equal(one.Env, []string{"WHO=me"}) || !two.Image || two.Cwd != "/srv" || len(two.Env) != 0 {
		t.Errorf("%+v", m.Inits)
	}
	if !slices.Equal(m.Dirs, []string{"/data"}) || b.request.Machine.Memory != 3<<30 || m.Readiness.GRPC.Port != 50051 {
		t.Errorf("%+v %v", m, b.request.Machine)
	}
	w.must(w.admin.Delete(t.Context(), s))
	always := corev1.ContainerRestartPolicyAlways
	for name, change := range map[string]func(c *corev1.Container){
		"image":         func(c *corev1.Container) { c.Image = "registry.example/other" },
		"restartPolicy": func(c *corev1.Container) { c.RestartPolicy = &always },
		"volumeMounts[0]": func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/elsewhere"}}
		},
		"env[0]": func(c *corev1.Container) { c.Env = []corev1.EnvVar{{Name: "a-b"}} },
	} {
		s := sandbox("refused")
		s.Spec.PodTemplate.Spec.Volumes, s.Spec.PodTemplate.Spec.Containers[0].VolumeMounts = pod.Volumes, main.VolumeMounts
		c := corev1.Container{Name: "init", Image: main.Image}
		change(&c)
		s.Spec.PodTemplate.Spec.InitContainers = []corev1.Container{c}
		w.must(w.admin.Create(t.Context(), s))
		w.becomes(s, agents.ReasonInvalid)
		if text := w.condition(s, "Ready").Message; !strings.HasPrefix(text, "initContainers[0]."+name+":") {
			t.Errorf("%s: %q", name, text)
		}
		w.must(w.admin.Delete(t.Context(), s))
		w.becomes(s, "gone")
	}
	for name, l := range map[string]*corev1.LifecycleHandler{
		"nothing": {}, "tcp": {TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}},
		"host": {HTTPGet: &corev1.HTTPGetAction{Host: "169.254.169.254", Port: intstr.FromInt32(80)}},
	} {
		s := sandbox(name)
		s.Spec.PodTemplate.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: l}
		if w.admin.Create(t.Context(), s) != nil {
			continue // the definition refuses it already
		}
		w.becomes(s, agents.ReasonInvalid)
		w.must(w.admin.Delete(t.Context(), s))
	}
}
