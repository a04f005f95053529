package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"turnstone.dev/turnstone/internal/kube/kubetest"
)

const (
	noImage   = "its image is in no registry here"
	noVolumes = "no class of storage makes volumes here"
	noRollout = "it changes the arguments of the controller's Deployment, which has no pods here"
	tooFast   = "it looks once a second whether its pool lacks a sandbox, and the pool has another one in less"
)

// without are tests of agent-sandbox's suite that this cluster cannot run, and why.
var without = map[string]string{
	"TestChromeSandboxDensity":                          noImage,
	"TestRunChromeSandbox":                              noImage,
	"TestPythonSandboxDensity":                          noImage,
	"TestRunSandboxdSandbox":                            noImage,
	"TestRunPythonRuntimeSandbox":                       noImage,
	"TestRunPythonRuntimeSandboxClaim":                  noImage,
	"TestRunPythonRuntimeSandboxWarmpool":               noImage,
	"TestSandboxVolumeClaimTemplates":                   noVolumes,
	"TestCreateSandboxClaimVolumeClaimTemplates":        noVolumes,
	"TestParallelSandboxes":                             noRollout,
	"TestParallelSandboxClaimsWithSufficientWarmPool":   noRollout,
	"TestParallelSandboxClaimsWithInsufficientWarmPool": noRollout,
	"TestRuntimeClassLifecycle":                         tooFast,
}

// TestAgentSandbox runs agent-sandbox's own controller, unchanged, and its own end-to-end tests: every pod of them runs
// by the shim.
func TestAgentSandbox(t *testing.T) {
	n := newNode(t)
	module, err := kubetest.AgentSandbox(t.Context())
	n.must(err)
	n.build(".", "agent-sandbox-controller", "build", "sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller")
	n.installed()
	n.start("agent-sandbox-controller", "--kubeconfig="+n.kubeconfig("agent-sandbox"), "--leader-elect=false", "--extensions",
		"--metrics-bind-address=0", "--health-probe-bind-address=0")
	for _, pkg := range []string{"./test/e2e", "./test/e2e/extensions"} {
		name := filepath.Base(pkg) + ".test"
		n.build(module, name, "test", "-c", pkg)
		t.Run(filepath.Base(pkg), func(t *testing.T) { n.suite(t, filepath.Join(n.tools, name)) })
	}
}

// installed makes what the tests take for an installation: the controller runs beside the cluster, so its Deployment has
// no pods.
func (n *node) installed() {
	n.Helper()
	const system, name = "agent-sandbox-system", "agent-sandbox-controller"
	_, err := n.admin.CoreV1().Namespaces().Create(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}},
		metav1.CreateOptions{})
	n.must(err)
	none, labels := int32(0), map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: system}, Spec: appsv1.DeploymentSpec{
		Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "pause"}}}}}}
	_, err = n.admin.AppsV1().Deployments(system).Create(n.Context(), d, metav1.CreateOptions{})
	n.must(err)
}

// build builds a program of a module beside the kubelet, once.
func (n *node) build(module, name string, args ...string) {
	n.Helper()
	if _, err := os.Stat(filepath.Join(n.tools, name)); err == nil {
		return
	}
	args = slices.Insert(args, 1, "-o", filepath.Join(n.tools, name), "-trimpath", "-tags=netgo,osusergo", "-ldflags=-s -w")
	cmd := exec.CommandContext(n.Context(), "go", args...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		n.Fatalf("building %s: %v\n%s", name, err, out)
	}
}

var verdict = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+)`)

// suite runs each test of a program, and reports each that fails.
func (n *node) suite(t *testing.T, program string) {
	dir := t.TempDir()
	run := func(args ...string) string {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
		cmd.Env = append(os.Environ(), "KUBECONFIG="+n.kubeconfig(kubetest.Admin), "ARTIFACTS="+dir,
			"SANDBOX_RUNTIME_CLASS=turnstone")
		_ = cmd.Run() // its verdicts are read
		return out.String()
	}
	for name := range strings.FieldsSeq(run("-test.list=^Test")) {
		if !strings.HasPrefix(name, "Test") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if why, has := without[name]; has {
				t.Skip(why)
			}
			out := run("-test.v", "-test.timeout=10m", "-test.run=^"+name+"$")
			for _, v := range verdict.FindAllStringSubmatch(out, -1) {
				switch {
				case v[2] != name:
				case v[1] == "PASS":
					return
				case v[1] == "SKIP":
					t.Skip(out)
				}
			}
			t.Error(out)
		})
	}
}
