package control_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sandboxv1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"turnstone.dev/turnstone/internal/api"
	connectv1 "turnstone.dev/turnstone/internal/api/turnstone/v1/turnstonev1connect"
	"turnstone.dev/turnstone/internal/channel/attest"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/control"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/kube/simnode"
	"turnstone.dev/turnstone/internal/proof/key"
	"turnstone.dev/turnstone/internal/server/config"
	"turnstone.dev/turnstone/internal/server/peers"
)

// A fleetWorld is an API server, a server with the roles gateway and controller as a process, simulated nodes,
// and an operator that trusts a root.
type fleetWorld struct {
	*testing.T
	dir, socket, url string
	root             *key.Signer
	to               connectv1.ControllerServiceClient
	admin            client.Client
}

func (w *fleetWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// until waits until f is true.
func (w *fleetWorld) until(what string, f func() bool) {
	w.Helper()
	if !kubetest.Poll(4*time.Minute, f) {
		list := &sandboxv1.SandboxList{}
		_ = w.admin.List(w.Context(), list)
		for _, s := range list.Items {
			w.Logf("%s on %q: %+v", s.Name, s.Status.NodeName, s.Status.Conditions)
		}
		w.Fatalf("waiting until %s took too long", what)
	}
}

// program returns a program that make build has built.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skip("make build has not built bin/" + name)
	}
	return path
}

// signerOf returns a key.
func (w *fleetWorld) signerOf(seed byte) *key.Signer {
	w.Helper()
	s, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32)))
	w.must(err)
	k, err := key.NewSigner(s)
	w.must(err)
	return k
}

// A said is what a process has written.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var listens = regexp.MustCompile(`listeners="\[(127\.0\.0\.1:\d+)`)

// serve starts gateway and controller.
func (w *fleetWorld) serve() {
	w.Helper()
	home, at, log := filepath.Join(w.dir, "home"), "unix:"+filepath.Join(w.dir, "peers"), &said{}
	cmd := exec.CommandContext(w.Context(), program(w.T, "turn-server"), "serve", "--role", "gateway", "--role", "controller",
		"--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "TURN_HOME="+home, "TURN_SERVER_PEERS_LISTEN="+at, "TURN_SERVER_LIMITS_RATE=10000",
		"TURN_SERVER_LIMITS_BURST=10000")
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	w.must(cmd.Start())
	w.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if w.Failed() {
			w.Logf("the server's log:\n%s", log)
		}
	})
	if !kubetest.Poll(4*time.Minute, func() bool { return listens.MatchString(log.String()) }) {
		w.Fatalf("the server does not listen: %s", log)
	}
	w.url, w.socket = "http://"+listens.FindStringSubmatch(log.String())[1], "unix:"+filepath.Join(home, "server.sock")
	p, err := peers.Open(config.Peers{}, nil)
	w.must(err)
	w.to = connectv1.NewControllerServiceClient(&http.Client{Transport: p.Transport(at, config.Controller)},
		"http://controller", api.ClientOptions()...)
}

// turn runs the program turn at the server's own socket.
func (w *fleetWorld) turn(args ...string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), program(w.T, "turn"), args...)
	cmd.Env = append(os.Environ(), "TURN_HOME="+filepath.Join(w.dir, "client"), "TURN_HOST="+w.socket)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("turn %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// node starts a node, whose key the root has certified or not.
func (w *fleetWorld) node(name string, seed byte, certified bool) *simnode.Node {
	w.Helper()
	k, now := w.signerOf(seed), time.Now()
	o := simnode.Options{Name: name, Socket: filepath.Join(w.dir, name), To: w.to, Key: k.String()}
	if certified {
		b, err := attest.SignCertificate(w.Context(), attest.Certificate{Node: name, Key: k.String(), Epoch: 1,
			Time: now.Add(-time.Hour), Expires: now.Add(time.Hour)}, w.root)
		w.must(err)
		o.Certificate = attest.JoinChain(b, nil)
	}
	n := simnode.New(o)
	w.must(n.Start(w.Context()))
	return n
}

// operator runs an operator with a token of its scopes until the test ends.
func (w *fleetWorld) operator(c *kubetest.Cluster) {
	w.Helper()
	home, token := filepath.Join(w.dir, "operator"), filepath.Join(w.dir, "token")
	w.must(os.Mkdir(home, 0o700))
	w.must(os.WriteFile(token, []byte(w.turn("token", "create", "--name", "operator", "--ttl", "2h", "--scope",
		"tokens:issue,tokens:read,tenants:issue,nodes:read,templates:read,pools:write,sandboxes:create,sandboxes:read,"+
			"sandboxes:connect,sandboxes:control,sandboxes:delete,sandboxes:manage")), 0o600))
	w.must(os.WriteFile(filepath.Join(home, "hosts.toml"), []byte(fmt.Sprintf("[hosts.cluster]\nurl = %q\n"+
		"[hosts.cluster.root]\nkey = %q\nepoch = 1\n", w.url, w.root.String())), 0o600))
	to, err := control.New(w.Context(), control.Options{Host: "cluster", Dir: home, TokenFile: token})
	w.must(err)
	cfg, err := c.Config("turn-operator")
	w.must(err)
	scheme, err := agents.Scheme()
	w.must(err)
	m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"}})
	w.must(err)
	w.must(agents.Add(m, &agents.Options{Server: to, Cluster: "test", Default: true, Log: slog.New(slog.DiscardHandler),
		Away: time.Second}))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the operator: %v", err)
		}
		_ = to.Close()
	})
}

// claim creates a claim of the pool.
func (w *fleetWorld) claim(name string) {
	if err := w.admin.Create(w.Context(), &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "p"}}}); err != nil {
		w.Error(err)
	}
}

// on returns the nodes of the objects that are ready, by their names, and whether all are.
func (w *fleetWorld) on() (of map[string]string, all bool) {
	w.Helper()
	list := &sandboxv1.SandboxList{}
	w.must(w.admin.List(w.Context(), list))
	of, all = map[string]string{}, true
	for _, s := range list.Items {
		ok := meta.IsStatusConditionTrue(s.Status.Conditions, "Ready")
		if all = all && ok; ok {
			of[s.Name] = s.Status.NodeName
		}
	}
	return of, all
}

func box(name string) *sandboxv1.Sandbox {
	s := &sandboxv1.Sandbox{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	s.Spec.PodTemplate.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
		Image: agents.TemplatePrefix + "base"}}}
	return s
}

// TestNodesLeaveAndJoin has three nodes, one of which is not trusted. While claims come, one dies and another
// one joins, with a certificate of the root and no hand. No claim gets the node that is not trusted; those of
// the dead one get others; an object there can be deleted; and nothing is left there when it is back.
func TestNodesLeaveAndJoin(t *testing.T) {
	if testing.Short() {
		t.Skip("a node is lost after 20 s")
	}
	program(t, "turn")
	ctrl.SetLogger(logr.Discard())
	w := &fleetWorld{T: t, dir: t.TempDir()}
	cluster := kubetest.Run(t, "../../..")
	w.must(cluster.GrantOperator(t.Context(), "../../../packaging/kubernetes/turnstone.yaml", "turn-operator"))
	cfg, err := cluster.Config(kubetest.Admin)
	w.must(err)
	scheme, err := agents.Scheme()
	w.must(err)
	w.admin, err = client.New(cfg, client.Options{Scheme: scheme})
	w.must(err)
	w.root = w.signerOf(100)
	w.serve()
	a, b := w.node("a", 1, true), w.node("b", 2, false)
	w.operator(cluster)

	tmpl := &extv1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "default"}}
	tmpl.Spec.SandboxBlueprint = box("").Spec.SandboxBlueprint
	w.must(w.admin.Create(t.Context(), tmpl))
	w.must(w.admin.Create(t.Context(), &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: "t"}}}))
	stays, waits := box("stays"), box("waits")
	waits.Spec.PodTemplate.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	w.must(w.admin.Create(t.Context(), stays))
	w.must(w.admin.Create(t.Context(), waits))
	for n := range 5 {
		w.claim(fmt.Sprint("early-", n))
	}
	w.until("all are ready", func() bool { of, all := w.on(); return all && len(of) == 7 })
	if of, _ := w.on(); of["stays"] != "a" || of["waits"] != "a" {
		t.Errorf("they are on %v", of)
	}

	w.node("c", 3, true)
	a.Kill()
	stop, claims := make(chan struct{}), sync.WaitGroup{}
	claims.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Second): //wait: it only spreads the claims over what happens
				w.claim(fmt.Sprint("late-", n))
			}
		}
	})
	end := sync.OnceFunc(func() { close(stop); claims.Wait() }) // also after a failure
	defer end()
	w.until("an object says that its node is lost", func() bool {
		w.must(w.admin.Get(t.Context(), client.ObjectKeyFromObject(waits), waits))
		r := meta.FindStatusCondition(waits.Status.Conditions, "Ready")
		return r != nil && r.Reason == agents.ReasonNodeLost
	})
	// Of nodes that are as good as each other the first by its name gets what comes from now on.
	d := w.node("0", 4, true)
	w.until("the node that joined serves", func() bool { return len(d.Has()) > 0 })
	end()
	w.must(w.admin.Delete(t.Context(), waits))
	w.until("all are ready elsewhere", func() bool {
		of, all := w.on()
		for _, node := range of {
			all = all && node != "a" && node != "b"
		}
		_, there := of["waits"]
		return all && !there && of["stays"] != ""
	})
	all := &eventsv1.EventList{}
	w.must(w.admin.List(t.Context(), all))
	if !slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
		return e.Regarding.Name == "stays" && e.Reason == agents.ReasonReplaced && strings.Contains(e.Note, "node a ")
	}) {
		t.Errorf("no event says that the sandbox is another one: %v", all.Items)
	}
	if out := w.turn("node", "ls"); !regexp.MustCompile(`(?m)^a +lost `).MatchString(out) {
		t.Errorf("turn node ls: %s", out)
	}
	w.turn("node", "rm", "a")
	if len(a.Has()) == 0 {
		t.Error("nothing is on the dead node")
	}
	w.must(a.Start(t.Context()))
	w.until("nothing is left on the node that is back", func() bool { return len(a.Has()) == 0 })
	if n := b.Made(); n > 0 {
		t.Errorf("a node that is not trusted has made %d sandboxes", n)
	}
}
