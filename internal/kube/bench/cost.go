package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "turnstone.dev/turnstone/internal/api/turnstone/v1"
	"turnstone.dev/turnstone/internal/kube/kubetest"
)

// counts are how often things happened. They are safe for concurrent use.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[what]++
}

// copy returns what was counted by now.
func (c *counts) copy() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.of)
}

// requests counts a client's requests to the API server, but for its watches.
func (c *counts) requests(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			a, err := next.RoundTrip(r)
			if err == nil && r.URL.Query().Get("watch") == "" {
				what := r.Method
				if a.StatusCode == http.StatusConflict {
					what += " (conflict)"
				}
				c.add(what)
			}
			return a, err
		})
	})
}

type roundTrip func(r *http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A counted server counts the calls that an operator makes for each claim.
type counted struct {
	*server
	calls *counts
}

// Create implements agents.Server.
func (c counted) Create(ctx context.Context, namespace string, r *v1.CreateSandboxRequest) (*v1.Sandbox, error) {
	c.calls.add("create")
	return c.server.Create(ctx, namespace, r)
}

// List implements agents.Server.
func (c counted) List(ctx context.Context, namespace, by string) ([]*v1.Sandbox, error) {
	c.calls.add("list")
	return c.server.List(ctx, namespace, by)
}

// A cost is what a number of claims cost, since it began.
type cost struct {
	b        *bench
	c        *kubetest.Cluster
	began    time.Time
	cpu      map[string]time.Duration
	requests map[string]int
	calls    map[string]int
	looks    map[string]int
}

func (b *bench) cost(c *kubetest.Cluster) (*cost, error) {
	looks, err := reconciles()
	return &cost{b: b, c: c, began: time.Now(), cpu: b.processors(c), requests: b.requests.copy(), calls: b.calls.copy(),
		looks: looks}, err
}

// processors returns the processor time of each program.
func (b *bench) processors(c *kubetest.Cluster) map[string]time.Duration {
	etcd, api := c.PIDs()
	return map[string]time.Duration{"etcd": cpuOf(etcd), "kube-apiserver": cpuOf(api), "gateway and controller": b.server.cpu(),
		"operator, callers, simulated nodes": cpuOf(os.Getpid())}
}

// print prints what each of a number of claims cost.
func (w *cost) print(claims int) error {
	looks, err := reconciles()
	if err != nil {
		return err
	}
	all, now := time.Duration(0), w.b.processors(w.c)
	var text []string
	for _, k := range slices.Sorted(maps.Keys(now)) {
		d := now[k] - w.cpu[k]
		all += d
		text = append(text, fmt.Sprintf("%s %.1f", k, d.Seconds()*1000/float64(claims)))
	}
	took := time.Since(w.began)
	fmt.Printf("| processor time for each, ms | %.1f: %s |\n", all.Seconds()*1000/float64(claims), strings.Join(text, ", "))
	fmt.Printf("| processors that they used meanwhile, of all that there are | %.2f |\n", all.Seconds()/took.Seconds())
	for _, row := range []struct {
		what     string
		was, now map[string]int
	}{{"looks at objects (reconciles)", w.looks, looks},
		{"the operator's requests to the API server, without watches", w.requests, w.b.requests.copy()},
		{"the operator's calls of the control API", w.calls, w.b.calls.copy()}} {
		sum, of := 0, []string{}
		for _, k := range slices.Sorted(maps.Keys(row.now)) {
			if n := row.now[k] - row.was[k]; n > 0 {
				sum += n
				of = append(of, fmt.Sprintf("%s %.2f", k, float64(n)/float64(claims)))
			}
		}
		fmt.Printf("| %s, for each | %.2f: %s |\n", row.what, float64(sum)/float64(claims), strings.Join(of, ", "))
	}
	return nil
}

// reconciles returns how often the operator of this process looked at objects, by controller.
func reconciles() (map[string]int, error) {
	all, err := metrics.Registry.Gather()
	if err != nil {
		return nil, err
	}
	of := map[string]int{}
	for _, f := range all {
		if f.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" {
					of[l.GetValue()] += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return of, nil
}
