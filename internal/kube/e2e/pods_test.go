package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestKubelet runs pods of the RuntimeClass as a cluster's user does, and kills what a machine runs, one after another.
func TestKubelet(t *testing.T) {
	n := newNode(t)
	t.Run("pod", n.with(served))
	t.Run("exit", n.with(exits))
	t.Run("kubelet killed", n.with(kubeletKilled))
	t.Run("API server killed", n.with(apiServerKilled))
	t.Run("containerd killed", n.with(containerdKilled))
	t.Run("shim killed", n.with(shimKilled))
}

// with returns a test with the node.
func (n *node) with(f func(n *node)) func(t *testing.T) {
	return func(t *testing.T) {
		m := *n
		m.T = t
		f(&m)
		n.kubelet = m.kubelet
	}
}

// pod creates a pod of the RuntimeClass with a container that runs a script.
func (n *node) pod(name, script string, change func(*corev1.Pod)) {
	n.Helper()
	class, grace := "turnstone", int64(1)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{RuntimeClassName: &class, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "main", Image: "busybox:1.36", Command: []string{"sh", "-c", script}}}}}
	if change != nil {
		change(p)
	}
	n.until("the service account of pods is there", func() bool {
		_, err := n.admin.CoreV1().ServiceAccounts(p.Namespace).Get(n.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	_, err := n.admin.CoreV1().Pods(p.Namespace).Create(n.Context(), p, metav1.CreateOptions{})
	n.must(err)
}

// get returns a pod, or nil if it is gone.
func (n *node) get(name string) *corev1.Pod {
	n.Helper()
	p, err := n.admin.CoreV1().Pods("default").Get(n.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	n.must(err)
	return p
}

// becomes waits until a pod is ready, or not.
func (n *node) becomes(name string, ready corev1.ConditionStatus) *corev1.Pod {
	n.Helper()
	var p *corev1.Pod
	n.until(fmt.Sprintf("the condition Ready of pod %s is %s", name, ready), func() bool {
		p = n.get(name)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				return c.Status == ready
			}
		}
		return false
	})
	return p
}

func (n *node) logs(name string) string {
	n.Helper()
	r, err := n.admin.CoreV1().Pods("default").GetLogs(name, &corev1.PodLogOptions{}).Stream(n.Context())
	n.must(err)
	defer func() { _ = r.Close() }()
	text, err := io.ReadAll(r)
	n.must(err)
	return string(text)
}

func (n *node) remove(name string) {
	n.Helper()
	n.must(n.admin.CoreV1().Pods("default").Delete(n.Context(), name, metav1.DeleteOptions{}))
	n.until("pod "+name+" is gone", func() bool { return n.get(name) == nil })
}

// served: a pod with a probe is ready when it answers, has the token of its account, and its output is read.
func served(n *node) {
	n.pod("web", "echo hello; ls /var/run/secrets/kubernetes.io/serviceaccount; exec httpd -f -p 8080 -h /etc", func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/hosts", Port: intstr.FromInt32(8080)}}}
	})
	n.becomes("web", corev1.ConditionTrue)
	if text := n.logs("web"); !strings.HasPrefix(text, "hello\n") || !strings.Contains(text, "token") {
		n.Errorf("its output is %q", text)
	}
	n.remove("web")
}

// exits: a pod whose process fails has its status.
func exits(n *node) {
	n.pod("exit", "echo oh; exit 3", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	n.until("the pod has failed", func() bool { return n.get("exit").Status.Phase == corev1.PodFailed })
	if s := n.get("exit").Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 3 {
		n.Errorf("it ended as %+v", s)
	}
	if text := n.logs("exit"); text != "oh\n" {
		n.Errorf("its output is %q", text)
	}
	n.remove("exit")
}

// same checks that a pod's container is the one that it was.
func (n *node) same(before, after *corev1.Pod) {
	n.Helper()
	if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID || b.RestartCount != 0 {
		n.Errorf("the container was %s, and is %s after %d restarts", a.ContainerID, b.ContainerID, b.RestartCount)
	}
}

// kubeletKilled: a pod runs on without its kubelet, and the next one finds it.
func kubeletKilled(n *node) {
	n.pod("on", "while true; do sleep 1; done", nil)
	before := n.becomes("on", corev1.ConditionTrue)
	n.kubelet.Kill()
	n.until("the machine is noticed as lost", func() bool { return !n.ready() })
	n.startKubelet()
	n.until("the machine is ready again", n.ready)
	n.same(before, n.becomes("on", corev1.ConditionTrue))
}

// apiServerKilled: the pod of the test before runs on without an API server, and one that comes afterwards is started.
func apiServerKilled(n *node) {
	before := n.becomes("on", corev1.ConditionTrue)
	n.cluster.KillAPIServer()
	n.must(n.cluster.StartAPIServer(n.Context()))
	n.pod("after", "sleep 1000", nil)
	n.becomes("after", corev1.ConditionTrue)
	n.same(before, n.becomes("on", corev1.ConditionTrue))
	n.remove("after")
}

// containerdKilled: the pod of the test before runs on without containerd.
func containerdKilled(n *node) {
	before := n.becomes("on", corev1.ConditionTrue)
	n.cri.Kill()
	n.must(n.cri.Start())
	n.pod("next", "sleep 1000", nil)
	n.becomes("next", corev1.ConditionTrue)
	n.same(before, n.becomes("on", corev1.ConditionTrue))
	n.remove("next")
	n.remove("on")
}

// shimKilled: the containers of a killed shim end, and the kubelet makes them anew. containerd takes 255 for a status
// that it could not ask for, though the shim's cleanup tells it 137. The kubelet may remove a container that has ended
// before it writes how: then the next one is killed.
func shimKilled(n *node) {
	n.pod("dies", "sleep 1000", nil)
	var ended *corev1.ContainerStateTerminated
	for range 5 {
		before := n.becomes("dies", corev1.ConditionTrue).Status.ContainerStatuses[0].RestartCount
		pids := n.shims()
		if len(pids) == 0 {
			n.Fatal("there is no shim")
		}
		for _, pid := range pids {
			n.must(syscall.Kill(pid, syscall.SIGKILL))
		}
		n.until("the container has ended and runs again", func() bool {
			s := n.get("dies").Status.ContainerStatuses
			return len(s) == 1 && s[0].RestartCount > before && s[0].State.Running != nil
		})
		if ended = n.get("dies").Status.ContainerStatuses[0].LastTerminationState.Terminated; ended != nil {
			break
		}
	}
	if ended == nil || ended.ExitCode != 255 && ended.ExitCode != 137 {
		n.Errorf("it ended as %+v", ended)
	}
	n.becomes("dies", corev1.ConditionTrue)
	n.remove("dies")
}

// shims returns the IDs of the shims of this node's containerd.
func (n *node) shims() (all []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		words := strings.Split(string(text), "\x00")
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if strings.HasPrefix(filepath.Base(words[0]), "containerd-shim-") && strings.Contains(string(environ), n.dir+"/") {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}
