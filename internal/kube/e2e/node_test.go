package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/testhome"
	"turnstone.dev/turnstone/shim/testbed"
)

const root = "../../.."

// patience bounds each wait, on a machine that does much else.
const patience = 5 * time.Minute

// A node is a cluster with one machine.
type node struct {
	*testing.T
	whole   *testing.T // the test that all others are part of
	cluster *kubetest.Cluster
	cri     *testbed.Bed
	admin   *kubernetes.Clientset
	tools   string // folder of kubelet and others
	dir     string
	kubelet *kubetest.Program
}

const nodeName = "machine"

// newNode starts everything, and waits until the kubelet is ready.
func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a kubelet needs root")
	}
	n := &node{T: t, whole: t, cluster: kubetest.RunForNodes(t, root)}
	var err error
	n.dir, err = os.MkdirTemp("", "kubelet") // outside of the test's folder, whose path is too long for sockets
	n.must(err)
	t.Cleanup(func() { n.must(os.RemoveAll(n.dir)) })
	n.tools, err = kubetest.BuildNode(t.Context(), testhome.Dir(t), "programs")
	n.must(err)
	cfg, err := n.cluster.Config(kubetest.Admin)
	n.must(err)
	n.admin, err = kubernetes.NewForConfig(cfg)
	n.must(err)
	n.cri = n.newBed()
	t.Cleanup(n.end)
	n.start("kube-controller-manager", "--kubeconfig="+n.kubeconfig("controllers"), "--leader-elect=false",
		"--service-account-private-key-file="+n.cluster.File("accounts.key"), "--root-ca-file="+n.cluster.File("ca.crt"),
		"--secure-port=0", "--use-service-account-credentials=false", "--cert-dir="+n.dir,
		// A node that does not answer is noticed soon, so that a test need not wait for it.
		"--node-monitor-period=1s", "--node-monitor-grace-period=20s")
	n.start("kube-scheduler", "--kubeconfig="+n.kubeconfig("scheduler"), "--leader-elect=false", "--secure-port=0",
		"--cert-dir="+n.dir)
	n.must(os.WriteFile(filepath.Join(n.dir, "config.yaml"), []byte(n.config()), 0o600))
	n.startKubelet()
	n.until("the node is ready", n.ready)
	_, err = n.admin.NodeV1().RuntimeClasses().Create(t.Context(), &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "turnstone"}, Handler: "turnstone"}, metav1.CreateOptions{})
	n.must(err)
	return n
}

// newBed starts containerd with the images that tests use.
func (n *node) newBed() *testbed.Bed {
	n.Helper()
	tools, err := testbed.Tools(n.Context(), testhome.Dir(n.T), filepath.Join(root, "shim/testbed/tools"))
	n.must(err)
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	n.must(err)
	b, err := testbed.New(testbed.Options{Dir: n.dir, Tools: tools, Shim: filepath.Join(bin, "containerd-shim-turnstone-v2"),
		Runsc: filepath.Join(bin, "runsc"), Home: filepath.Join(n.dir, "home"),
		Mirrors: []string{"docker.io", "registry.k8s.io"}})
	n.must(err)
	path := []string{"PATH=/bin"}
	n.must(b.Registry.Push("library/busybox:1.36", v1.Config{Cmd: []string{"sh"}, Env: path}, nil, nil))
	n.must(b.Registry.Push("pause:3.10", v1.Config{Entrypoint: []string{"sleep", "1000000"}, Env: path}, nil, nil))
	return b
}

// end removes all pods, and ends the kubelet before containerd.
func (n *node) end() {
	grace := int64(0)
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	if err := n.admin.CoreV1().Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &grace},
		metav1.ListOptions{}); err != nil {
		n.Error(err)
	}
	kubetest.Poll(patience, func() bool {
		all, err := n.admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
	n.kubelet.Kill()
	if n.Failed() {
		n.Logf("the kubelet's log:\n%s\ncontainerd's:\n%s", n.kubelet.Log(), n.cri.Log())
	}
	for _, what := range n.cri.Close() {
		n.Errorf("left: %s", what)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.SplitSeq(string(mounts), "\n") { // volumes of pods
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], n.dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

func (n *node) kubeconfig(user string) string {
	n.Helper()
	path, err := n.cluster.Kubeconfig(user, "system:masters")
	n.must(err)
	return path
}

// config is the kubelet's: for a machine whose control groups are not its own, and of version 1 perhaps.
func (n *node) config() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %q
failCgroupV1: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
makeIPTablesUtilChains: false
oomScoreAdj: 0
port: %d
healthzPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %q}}
authorization: {mode: AlwaysAllow}
podLogsDir: %q
volumePluginDir: %q
resolvConf: ""
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 5
serializeImagePulls: false
`, n.cri.Endpoint(), n.port(), n.cluster.File("ca.crt"), filepath.Join(n.dir, "pods"), filepath.Join(n.dir, "plugins"))
}

// port returns a free port of the machine.
func (n *node) port() int {
	l, err := (&net.ListenConfig{}).Listen(n.Context(), "tcp", ":0")
	n.must(err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func (n *node) startKubelet() {
	n.Helper()
	n.kubelet = n.start("kubelet", "--config="+filepath.Join(n.dir, "config.yaml"), "--kubeconfig="+n.kubeconfig("kubelet"),
		"--hostname-override="+nodeName, "--root-dir="+filepath.Join(n.dir, "kubelet"), "--cert-dir="+filepath.Join(n.dir, "certs"))
}

func (n *node) ready() bool {
	m, err := n.admin.CoreV1().Nodes().Get(n.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, c := range m.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && len(m.Spec.Taints) == 0
		}
	}
	return false
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// until waits until f is true.
func (n *node) until(what string, f func() bool) {
	n.Helper()
	if !kubetest.Poll(patience, f) {
		n.Fatalf("waiting until %s took too long; the kubelet's log:\n%s", what, n.kubelet.Log())
	}
}

// start starts a program of the cluster, which runs until the test ends.
func (n *node) start(name string, args ...string) *kubetest.Program {
	n.Helper()
	p := &kubetest.Program{Path: filepath.Join(n.tools, name), Args: args, Dir: n.dir}
	n.must(p.Start())
	n.whole.Cleanup(p.Kill)
	return p
}
