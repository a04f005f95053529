package agents_test

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"

	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/control"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/kube/router"
	"turnstone.dev/turnstone/internal/template/oci/ocitest"
	"turnstone.dev/turnstone/wire"
)

// inside is set in the process of a test that scripts/test-server started.
const inside = "TURN_TEST_KUBE_AGENTS"

// TestMachineContainers runs TestInside with a server of its own, whose sandboxes are real.
func TestMachineContainers(t *testing.T) {
	kubetest.Inside(t, "../../..", inside, "[limits]\nrate = 1000\nburst = 1000\n")
}

// entry is the ENTRYPOINT of the test's image, which has no program but bash.
const entry = `#!/bin/bash
echo "$* in $PWD as $UID with $COLOR and $TOKEN"
[ "$1" = crash ] && { echo "the reason" >&2; exit 3; }
: >/tmp/up
read -t 100000 < <(kill -STOP $BASHPID)
`

// image serves an image with an ENTRYPOINT, and lets the server's sandboxes use it.
func image(t *testing.T) string {
	t.Helper()
	reg := ocitest.Serve(t, nil)
	layer := ocitest.Tar(t, ocitest.Entry{Header: tar.Header{Name: "entry", Mode: 0o755}, Content: entry},
		ocitest.Entry{Header: tar.Header{Name: "srv", Typeflag: tar.TypeDir, Mode: 0o755}},
		ocitest.Entry{Header: tar.Header{Name: "etc/passwd"}, Content: "root:x:0:0::/root:/bin/sh\napp:x:7:7::/srv:/bin/sh\n"})
	reg.Push(t, "app:1", ocitest.Image(t, ocitest.Config{Entrypoint: []string{"/bin/bash", "/entry"}, Cmd: []string{"serve"},
		Workdir: "/srv", User: "app", Env: []string{"COLOR=blue", "PATH=/bin:/usr/bin"}}, layer))
	config := filepath.Join(os.Getenv("TURN_TEST_SERVER_HOME"), "config.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[images]\nregistries = [%q]\n", reg.Host), 0o600); err != nil {
		t.Fatal(err)
	}
	return reg.Host + "/app:1"
}

// TestInside runs containers in real sandboxes: see TestMachineContainers.
func TestInside(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("TestMachineContainers starts it")
	}
	w := newWorld(t)
	w.wait, w.again, w.guest = 10*time.Minute, time.Hour, 10*time.Minute
	server, socket := os.Getenv("TURN_TEST_SERVER_HOME"), "unix:"+os.Getenv("TURN_TEST_SOCKET")
	args := []string{"token", "create", "--name", "operator", "--ttl", "2h"}
	for _, s := range append(control.Sandboxes(), "tokens:issue", "tokens:read", "tenants:issue", "pools:write") {
		args = append(args, "--scope", s)
	}
	cmd := exec.CommandContext(t.Context(), "turn", args...)
	cmd.Env = append(os.Environ(), "TURN_HOME="+server, "TURN_HOST="+socket)
	token, err := cmd.Output()
	w.must(err)
	file := filepath.Join(t.TempDir(), "token")
	w.must(os.WriteFile(file, token, 0o600))
	c, err := control.New(t.Context(), control.Options{Host: "test", Dir: os.Getenv("TURN_HOME"), TokenFile: file})
	w.must(err)
	t.Cleanup(func() { _ = c.Close() })
	name := image(t)
	stop := w.operator(c, nil)
	s := w.starts(c, name)
	stop()
	w.operator(c, nil) // another one goes on
	w.crashes(c, name)
	w.ends(c, s)
}

// of returns a Sandbox of the image.
func of(object, image string, args ...string) *sandboxv1.Sandbox {
	s := sandbox(object)
	c := &s.Spec.PodTemplate.Spec.Containers[0]
	c.Image, c.Command, c.Args = image, nil, args
	return s
}

// logs returns what the router answers about the output of a sandbox.
func (w *world) logs(c *control.Client, object string) (out, errs string) {
	w.Helper()
	h := router.New(router.Options{Server: c, Cluster: "test", Log: slog.New(slog.DiscardHandler), Network: true})
	r := httptest.NewRequest(http.MethodGet, "/logs", nil)
	r.Header.Set("X-Sandbox-Id", object)
	a := httptest.NewRecorder()
	h.ServeHTTP(a, r)
	var answer struct{ Stdout, Stderr string }
	w.must(json.Unmarshal(a.Body.Bytes(), &answer))
	if a.Code != http.StatusOK {
		w.Fatalf("the logs are %d %s", a.Code, a.Body)
	}
	return answer.Stdout, answer.Stderr
}

// starts starts a container with an init container, a hook and a readiness probe. Its image decides the program, the
// working directory and the user.
func (w *world) starts(c *control.Client, name string) *sandboxv1.Sandbox {
	w.Helper()
	ctx := w.Context()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "real", Namespace: "default"},
		StringData: map[string]string{"token": "sesame"}}
	w.must(w.admin.Create(ctx, secret))
	w.references("default")
	s := of("starts", name)
	main := &s.Spec.PodTemplate.Spec.Containers[0]
	main.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "real"}, Key: "token"}}}}
	main.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/bin/bash", "-c", "test -e /tmp/up && test -e /tmp/first && test -e /tmp/hook"}}}}
	main.Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
		Command: []string{"/bin/bash", "-c", ": >/tmp/hook"}}}}
	s.Spec.PodTemplate.Spec.InitContainers = []corev1.Container{{Name: "first", Image: name,
		Command: []string{"/bin/bash", "-c", "[ $TOKEN = sesame ] && [ $WHO = init ] && [ ! -e /tmp/up ] && : >/tmp/first"},
		Env:     append([]corev1.EnvVar{{Name: "WHO", Value: "init"}}, main.Env...)}}
	w.must(w.admin.Create(ctx, s))
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	if out, _ := w.logs(c, "starts"); out != "serve in /srv as 7 with blue and sesame\n" {
		w.Errorf("it says %q", out)
	}
	return s
}

// crashes has a container that fails again and again, and says why.
func (w *world) crashes(c *control.Client, name string) {
	w.Helper()
	s := of("crashes", name, "crash", "now")
	s.Spec.PodTemplate.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	w.must(w.admin.Create(w.Context(), s))
	w.becomes(s, "CrashLoopBackOff")
	if text := w.condition(s, "Ready").Message; !strings.Contains(text, "has ended with the status 3: the reason") {
		w.Errorf("it says %q", text)
	}
	if out, errs := w.logs(c, "crashes"); !strings.HasPrefix(out, "crash now in /srv") || errs != "the reason\n" {
		w.Errorf("it has written %q %q", out, errs)
	}
	w.must(w.admin.Delete(w.Context(), s))
	w.becomes(s, "gone")
}

// ends ends a container that runs, which is started again, and then its sandbox. Both are told by events.
func (w *world) ends(c *control.Client, s *sandboxv1.Sandbox) {
	w.Helper()
	ctx := w.Context()
	all, err := c.List(ctx, "default", agents.Managed("test", "default", "starts", string(s.UID)))
	w.must(err)
	if len(all) != 1 {
		w.Fatalf("the object has %d sandboxes", len(all))
	}
	id := all[0].SandboxId
	w.must(c.Use(ctx, "default", id, func(a *wire.Client) error {
		if err := a.FileSystemRemove(ctx, &wire.FileSystemRemoveParams{Path: "/tmp/up"}); err != nil {
			return err
		}
		return a.ProcessSignal(ctx, &wire.ProcessSignalParams{ProcessID: "main-1", Signal: "KILL"})
	}))
	w.until("it was started again", func() bool {
		var has bool
		w.must(c.Use(ctx, "default", id, func(a *wire.Client) error {
			p, err := a.ProcessList(ctx)
			for _, p := range p.Processes {
				has = has || p.ProcessID == "main-2" && p.Exit == nil
			}
			return err
		}))
		return has
	})
	w.becomes(s, sandboxv1.SandboxReasonDependenciesReady)
	w.must(c.Delete(ctx, "default", id))
	w.until("the object says that its sandbox is gone, or has another", func() bool {
		if w.condition(s, "Ready").Reason == sandboxv1.SandboxReasonPodFailed {
			return true
		}
		now, err := c.List(ctx, "default", agents.Managed("test", "default", "starts", string(s.UID)))
		return err == nil && len(now) == 1 && now[0].SandboxId != id
	})
}
