package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/kube/control"
	"turnstone.dev/turnstone/internal/kube/kubetest"
	"turnstone.dev/turnstone/internal/remote"
	"turnstone.dev/turnstone/internal/remote/hosts"
	"turnstone.dev/turnstone/sandboxes"
)

const (
	realKind = "256Mi"   // their memory
	tenant   = "default" // whose they are: the namespace of the claims
	say      = "echo up"
)

// operatorScopes are what the operator's token grants.
func operatorScopes() []string {
	return append(control.Sandboxes(), "tokens:issue", "tokens:read", "tenants:issue", "pools:write")
}

// A realNode is a server whose sandboxes are real and wait in a pool, with its operator.
type realNode struct {
	*kubetest.Server
	pool            int // sandboxes that wait
	metrics, router string
}

// real claims sandboxes that wait, one after another: through the gateway, and as objects. Each claim
// ends with the answer of a command in its sandbox.
func (b *bench) real(ctx context.Context, dir string) error {
	if b.claimsOfReal == 0 {
		return nil
	}
	n, err := startReal(ctx, b.bin, dir, b.pool)
	if err != nil {
		return err
	}
	defer n.End()
	c, err := b.cluster(ctx, filepath.Join(dir, "cluster"))
	if err != nil {
		return err
	}
	defer c.End()
	if err := n.operate(ctx, c, b.operatorPath); err != nil {
		return err
	}
	to, err := adminOf(c)
	if err != nil {
		return err
	}
	if err := makePool(ctx, to, corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(realKind)}); err != nil {
		return err
	}
	fmt.Printf("\n%d claims of real sandboxes that wait, one after another: gVisor, one server with all roles, pool of %d; "+
		"load at the beginning %s.\n\n| from the call until | p50 | p99 |\n|---|---|---|\n", b.claimsOfReal, b.pool, load())
	before, err := n.warmClaims(ctx)
	if err != nil {
		return err
	}
	if err := n.throughGateway(ctx, b.claimsOfReal); err != nil {
		return err
	}
	if err := n.asObjects(ctx, to, b.claimsOfReal); err != nil {
		return err
	}
	if err := n.rhythms(ctx, to, b.sizes); err != nil {
		return fmt.Errorf("%w: %s", err, n.Operator.Log())
	}
	after, err := n.warmClaims(ctx)
	if err == nil {
		fmt.Printf("\n%.0f of the %d claims got a sandbox that waited; load at the end %s.\n", after-before,
			2*b.claimsOfReal+b.paced+b.inARow+b.pool, load())
	}
	return err
}

// rhythms claims by objects as clients do: one a second, one after another without a pause, and as many at once as
// wait.
func (n *realNode) rhythms(ctx context.Context, to client.WithWatch, s sizes) error {
	claim := func(name string, count, callers int) ([]time.Duration, error) {
		took, err := claimAll(ctx, to, name, count, callers)
		for i := 0; err == nil && i < count; i++ {
			err = to.Delete(ctx, claimOf(fmt.Sprint(name, "-", i)))
		}
		return took, err
	}
	if err := n.full(ctx); err != nil {
		return err
	}
	var paced []time.Duration
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range s.paced {
		<-second.C
		took, err := claim(fmt.Sprint("paced-", i), 1, 1)
		if err != nil {
			return err
		}
		paced = append(paced, took...)
	}
	row("SandboxClaim, one a second: its condition Ready (goal: 20 ms)", paced)
	for _, r := range []struct {
		what           string
		count, callers int
	}{{"SandboxClaim, %d one after another, without a pause (goal: 60 ms)", s.inARow, 1},
		{"SandboxClaim, %d at once: the p99 is the last (goal: 400 ms)", s.pool, s.pool}} {
		if err := n.full(ctx); err != nil {
			return err
		}
		took, err := claim(fmt.Sprint("rhythm-", r.callers), r.count, r.callers)
		if err != nil {
			return err
		}
		row(fmt.Sprintf(r.what, r.count), took)
	}
	return nil
}

// startReal starts the server.
func startReal(ctx context.Context, bin, dir string, pool int) (*realNode, error) {
	s, err := kubetest.StartServer(ctx, kubetest.ServerOptions{Bin: bin, Dir: dir, Tenant: tenant, Scopes: operatorScopes(),
		Env: []string{"TURN_SERVER_TELEMETRY_LISTEN=127.0.0.1:0",
			fmt.Sprintf(`TURN_SERVER_POOLS=[{template = "base", tenant = %q, memory = "256MiB", min = %d, max = %[2]d}]`,
				tenant, pool)}})
	if err != nil {
		return nil, err
	}
	n := &realNode{Server: s, pool: pool}
	if n.metrics, err = s.Process.Printed(ctx, metricsAt); err != nil {
		n.End()
	}
	return n, err
}

var (
	metricsAt = regexp.MustCompile(`serving metrics.*address="?(127\.0\.0\.1:\d+)`)
	routerAt  = regexp.MustCompile(`serving agent-sandbox's clients.*address="?(127\.0\.0\.1:\d+)`)
)

// operate starts the operator with its router.
func (n *realNode) operate(ctx context.Context, c *kubetest.Cluster, path string) error {
	if err := n.Operate(c, path, "--router", "127.0.0.1:0"); err != nil {
		return err
	}
	var err error
	n.router, err = n.Operator.Printed(ctx, routerAt)
	return err
}

// gauge returns a number of the server's metrics.
func (n *realNode) gauge(ctx context.Context, name string) (float64, error) {
	text, err := ask(ctx, http.MethodGet, "http://"+n.metrics+"/metrics", nil, nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(rest), 64)
		}
	}
	return 0, nil // none yet
}

func (n *realNode) warmClaims(ctx context.Context) (float64, error) {
	return n.gauge(ctx, `turnstone_pool_claims_total{result="warm"}`)
}

// full waits until the pool is full, so that nothing is made while a claim is measured.
func (n *realNode) full(ctx context.Context) error {
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		has, err := n.gauge(ctx, `turnstone_pool_sandboxes{state="ready"}`)
		if err != nil || has >= float64(n.pool) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%.0f sandboxes wait, not %d: %s", has, n.pool, n.Process.Log())
		}
	}
}

// throughGateway claims by the control API, with the sealed channel to each sandbox.
func (n *realNode) throughGateway(ctx context.Context, count int) error {
	token, err := hosts.ReadToken(filepath.Join(n.Client, "user.token"))
	if err != nil {
		return err
	}
	s, err := hosts.Client{Dir: n.Client, Token: token}.Server(ctx, "test")
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var ready, done []time.Duration
	for range count {
		if err := n.full(ctx); err != nil {
			return err
		}
		began := time.Now()
		i, err := s.AllSandboxes().Create(ctx, sandboxes.Spec{Image: "base", Substrate: "auto", TTL: time.Hour,
			Shape: turnstone.Shape{Memory: turnstone.MinMemory, Network: true}}, nil)
		if err != nil {
			return err
		}
		ready = append(ready, time.Since(began))
		if err := answers(ctx, s, i.ID); err != nil {
			return err
		}
		done = append(done, time.Since(began))
		if err := s.AllSandboxes().Remove(ctx, i.ID); err != nil {
			return err
		}
	}
	row("gateway: the answer of CreateSandbox", ready)
	row("gateway: the output of `echo`, through a channel of its own", done)
	return nil
}

func answers(ctx context.Context, s *remote.Server, id turnstone.SandboxID) error {
	var out bytes.Buffer
	_, err := s.AllSandboxes().Exec(ctx, id, sandboxes.Command{Argv: []string{"bash", "-c", say}, Stdout: &out})
	if err == nil && out.String() != "up\n" {
		err = fmt.Errorf("the command printed %q", out.String())
	}
	return err
}

// asObjects claims by SandboxClaim objects, and runs the command through the operator's router.
func (n *realNode) asObjects(ctx context.Context, to client.WithWatch, count int) error {
	var ready, done []time.Duration
	for i := range count {
		if err := n.full(ctx); err != nil {
			return err
		}
		name := fmt.Sprint("real-", i)
		began := time.Now()
		took, err := claimAll(ctx, to, name, 1, 1)
		if err != nil {
			return fmt.Errorf("%w: %s", err, n.Operator.Log())
		}
		ready = append(ready, took[0])
		text, err := ask(ctx, http.MethodPost, "http://"+n.router+"/execute", strings.NewReader(`{"command":"`+say+`"}`),
			map[string]string{"X-Sandbox-ID": name + "-0", "X-Sandbox-Namespace": tenant})
		done = append(done, time.Since(began))
		var answer struct{ Stdout string }
		if err == nil {
			err = json.Unmarshal([]byte(text), &answer)
		}
		if err == nil && answer.Stdout != "up\n" {
			err = fmt.Errorf("the command answered %s", text)
		}
		if err == nil {
			err = to.Delete(ctx, claimOf(name+"-0"))
		}
		if err != nil {
			return err
		}
	}
	row("SandboxClaim: its condition Ready, in a watch", ready)
	row("SandboxClaim: the output of `echo`, through the router", done)
	return nil
}

func row(what string, took []time.Duration) {
	fmt.Printf("| %s | %.0f ms | %.0f ms |\n", what, quantile(took, 50), quantile(took, 99))
}

// ask returns the answer of an HTTP request.
func ask(ctx context.Context, method, url string, body io.Reader, header map[string]string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	for k, v := range header {
		r.Header.Set(k, v)
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(a.Body, 16<<20))
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, a.Status, text)
	}
	return string(text), err
}
