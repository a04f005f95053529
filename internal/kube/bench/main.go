// Command bench measures claims with simulated nodes and a real etcd, kube-apiserver, gateway and
// controller, and prints markdown: the part kubernetes of make bench. It is apart from the other parts,
// because it has the libraries of Kubernetes.
//
//	go run ./internal/kube/bench -bin bin
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extv1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/agents"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/testhome"
)

type bench struct {
	sizes
	bin, root, operatorPath string
	server                  *server
	requests, calls         counts // of the operator in this process
	profile                 string
}

// sizes are how much is measured.
type sizes struct {
	nodes, callers, claims, objects, sandboxes, claimsOfReal int // which flags give
	warmUp, singles, pool, paced, inARow                     int
}

func fullSizes() sizes {
	return sizes{nodes: 64, callers: 64, claims: 10_000, objects: 500, sandboxes: 100_000, claimsOfReal: 50,
		warmUp: 200, singles: 50, pool: 10, paced: 30, inARow: 30}
}

// quickSizes are the smallest with which all code runs.
func quickSizes() sizes {
	return sizes{nodes: 2, callers: 2, claims: 20, objects: 2, sandboxes: 50, claimsOfReal: 1,
		warmUp: 2, singles: 1, pool: 1, paced: 1, inARow: 2}
}

func main() {
	b := bench{sizes: fullSizes()}
	quick := flag.Bool("quick", false, "run all code with the smallest sizes; the figures mean nothing")
	flag.StringVar(&b.bin, "bin", "bin", "folder of turn, turn-server and runsc")
	flag.StringVar(&b.operatorPath, "operator", "bin/turn-operator", "the program turn-operator")
	flag.StringVar(&b.root, "root", ".", "folder of the checkout")
	flag.IntVar(&b.nodes, "nodes", b.nodes, "simulated nodes; 0: only real sandboxes")
	flag.IntVar(&b.callers, "callers", b.callers, "callers at one time")
	flag.IntVar(&b.claims, "claims", b.claims, "claims through the gateway")
	flag.IntVar(&b.objects, "objects", b.objects, "SandboxClaim objects")
	flag.IntVar(&b.sandboxes, "sandboxes", b.sandboxes, "sandboxes for the controller's memory")
	flag.StringVar(&b.profile, "profile", "", "file for a profile of this process while it serves objects")
	flag.IntVar(&b.claimsOfReal, "real", b.claimsOfReal, "claims of real sandboxes, each way")
	flag.Parse()
	if *quick {
		b.sizes = quickSizes()
		flag.Parse() // sizes that flags give have precedence
	}
	if err := b.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctrl.SetLogger(logr.Discard())
	dir, err := os.MkdirTemp("", "turn-kube-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	fmt.Print("## Kubernetes\n")
	if b.nodes > 0 {
		if err := b.simulated(ctx, dir); err != nil {
			return err
		}
	}
	return b.real(ctx, filepath.Join(dir, "real"))
}

// simulated measures with nodes that have no machines.
func (b *bench) simulated(ctx context.Context, dir string) (err error) {
	if b.server, err = startServer(ctx, b.bin, dir, tenant, b.nodes); err != nil {
		return err
	}
	defer b.server.run.End()
	fmt.Printf("\n%d simulated nodes and %d callers in one process, gateway and controller in another "+
		"(SQLite), etcd and kube-apiserver; load at the beginning %s.\n\n| what | |\n|---|---|\n", b.nodes, b.callers, load())
	if _, err := b.gateway(ctx, "warm-up", b.warmUp); err != nil {
		return err
	}
	used := b.server.cpu()
	began := time.Now()
	took, err := b.gateway(ctx, "claims", b.claims)
	if err != nil {
		return err
	}
	fmt.Printf("| claims in a second through the gateway, of %d (goal: 1,000) | %.0f |\n", b.claims,
		float64(len(took))/time.Since(began).Seconds())
	fmt.Printf("| their time, p50 and p99 (goal: 200 ms) | %.0f ms, %.0f ms |\n", quantile(took, 50), quantile(took, 99))
	fmt.Printf("| processor time of gateway and controller for each | %.2f ms |\n",
		float64((b.server.cpu()-used).Microseconds())/1000/float64(b.claims))
	if b.objects > 0 {
		if err := b.asObjects(ctx, filepath.Join(dir, "cluster")); err != nil {
			return err
		}
	}
	return b.memory(ctx)
}

// load returns the computer's load in the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// gateway creates sandboxes through the gateway, and returns how long each creation took.
func (b *bench) gateway(ctx context.Context, name string, count int) ([]time.Duration, error) {
	var all sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	took := make([]time.Duration, count)
	for range b.callers {
		all.Go(func() {
			for n := int(next.Add(1)) - 1; n < count && failed.Load() == nil; n = int(next.Add(1)) - 1 {
				began := time.Now()
				_, err := b.server.Create(ctx, "", &v1.CreateSandboxRequest{IdempotencyKey: fmt.Sprint(name, "-", n),
					Source: &v1.CreateSandboxRequest_Template{Template: "base"}})
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				}
				took[n] = time.Since(began)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return took, nil
}

// quantile returns a quantile in milliseconds.
func quantile(all []time.Duration, percent int) float64 {
	s := slices.Sorted(slices.Values(all))
	return float64(s[min(len(s)-1, len(s)*percent/100)].Microseconds()) / 1000
}

// memory fills the controller with sandboxes.
func (b *bench) memory(ctx context.Context) error {
	made := b.warmUp + b.claims
	if b.sandboxes <= made {
		return nil
	}
	if _, err := b.gateway(ctx, "fill", b.sandboxes-made); err != nil {
		return err
	}
	now, most := b.server.memory()
	fmt.Printf("| memory of gateway and controller with %d sandboxes, now and at most (goal: 1,024 MiB) | %d MiB, %d MiB |\n",
		b.sandboxes, now, most)
	return nil
}

// asObjects creates SandboxClaim objects, and waits until all are ready.
func (b *bench) asObjects(ctx context.Context, dir string) error {
	c, err := b.cluster(ctx, dir)
	if err != nil {
		return err
	}
	defer c.End()
	if err := b.operator(ctx, c); err != nil {
		return err
	}
	return b.measureObjects(ctx, c)
}

// cluster starts an etcd and a kube-apiserver with the definitions of agent-sandbox in a new folder.
func (b *bench) cluster(ctx context.Context, dir string) (*kubetest.Cluster, error) {
	home, err := testhome.Path()
	if err != nil {
		return nil, err
	}
	p, err := kubetest.Build(ctx, home, filepath.Join(b.root, "internal/kube/kubetest/testserver"))
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	c, err := kubetest.Start(ctx, p, dir)
	if err != nil {
		return nil, err
	}
	module, err := kubetest.AgentSandbox(ctx)
	if err == nil {
		err = c.InstallCRDs(ctx, filepath.Join(module, "k8s/crds"))
	}
	if err != nil {
		c.End()
		return nil, err
	}
	return c, nil
}

// operator runs an operator until ctx ends.
func (b *bench) operator(ctx context.Context, c *kubetest.Cluster) error {
	cfg, err := c.Config("turn-operator", "system:masters")
	if err != nil {
		return err
	}
	scheme, err := agents.Scheme()
	if err != nil {
		return err
	}
	b.requests.requests(cfg)
	m, err := ctrl.NewManager(cfg, ctrl.Options{Scheme: scheme, Metrics: metrics.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	if err := agents.Add(m, &agents.Options{Server: counted{b.server, &b.calls}, Cluster: "bench", Default: true,
		Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	go func() { _ = m.Start(ctx) }()
	return nil
}

// profiled begins a profile, if one is asked for, and returns what ends it.
func (b *bench) profiled() (end func(), err error) {
	if b.profile == "" {
		return func() {}, nil
	}
	f, err := os.Create(b.profile)
	if err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); _ = f.Close() }, pprof.StartCPUProfile(f)
}

// adminOf returns a client that may do everything.
func adminOf(c *kubetest.Cluster) (client.WithWatch, error) {
	cfg, err := c.Config(kubetest.Admin)
	if err != nil {
		return nil, err
	}
	scheme, err := agents.Scheme()
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(cfg, client.Options{Scheme: scheme})
}

// makePool makes the SandboxWarmPool p, without sandboxes that wait for it, and its template.
func makePool(ctx context.Context, to client.Client, limits corev1.ResourceList) error {
	none := int32(0)
	tmpl := &extv1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: tenant}}
	tmpl.Spec.PodTemplate.Spec.Containers = []corev1.Container{{Name: "main", Image: agents.TemplatePrefix + "base",
		Resources: corev1.ResourceRequirements{Limits: limits}}}
	pool := &extv1.SandboxWarmPool{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: tenant},
		Spec: extv1.SandboxWarmPoolSpec{TemplateRef: extv1.SandboxTemplateRef{Name: "t"}, Replicas: &none}}
	return errors.Join(to.Create(ctx, tmpl), to.Create(ctx, pool))
}

// claimOf returns a claim of the pool p.
func claimOf(name string) *extv1.SandboxClaim {
	return &extv1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tenant},
		Spec: extv1.SandboxClaimSpec{WarmPoolRef: extv1.SandboxWarmPoolRef{Name: "p"}}}
}

func (b *bench) measureObjects(ctx context.Context, c *kubetest.Cluster) error {
	to, err := adminOf(c)
	if err != nil {
		return err
	}
	if err := makePool(ctx, to, nil); err != nil {
		return err
	}
	if _, err := claimAll(ctx, to, "warm", 5, 5); err != nil {
		return err
	}
	began, err := b.cost(c)
	if err != nil {
		return err
	}
	end, err := b.profiled()
	if err != nil {
		return err
	}
	took, err := claimAll(ctx, to, "c", b.objects, b.callers)
	end()
	if err != nil {
		return err
	}
	fmt.Printf("| SandboxClaim objects that become ready in a second, of %d | %.0f |\n", b.objects,
		float64(b.objects)/time.Since(began.began).Seconds())
	if err := began.print(b.objects); err != nil {
		return err
	}
	fmt.Printf("| from the creation of such an object until it is ready, %d at once, p50 and p99 | %.0f ms, %.0f ms |\n",
		b.callers, quantile(took, 50), quantile(took, 99))
	one, err := claimAll(ctx, to, "single", b.singles, 1)
	if err != nil {
		return err
	}
	fmt.Printf("| the same of %d, one after the other | %.0f ms, %.0f ms |\n", b.singles, quantile(one, 50),
		quantile(one, 99))
	return b.printWrites(c)
}

// printWrites prints the operator's writes for the claims that were measured.
func (b *bench) printWrites(c *kubetest.Cluster) error {
	writes, err := c.Writes()
	if err != nil {
		return err
	}
	of := map[string]int{}
	for _, w := range writes {
		if w.User == "turn-operator" && strings.HasPrefix(w.Name, "c-") {
			of[strings.TrimSuffix(w.Verb+" "+w.Resource+"/"+w.Subresource, "/")]++
		}
	}
	sum := 0
	var text []string
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range of {
			if !yield(k) {
				return
			}
		}
	}) {
		sum += of[k]
		text = append(text, fmt.Sprintf("%s %.2f", k, float64(of[k])/float64(b.objects)))
	}
	fmt.Printf("| the operator's writes to the API server for each SandboxClaim (goal: 2) | %.2f: %s |\n",
		float64(sum)/float64(b.objects), strings.Join(text, ", "))
	return nil
}
