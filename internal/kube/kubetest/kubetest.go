package kubetest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"turnstone.dev/turnstone/internal/testhome"
)

// Run starts a cluster with the definitions of agent-sandbox, and the project's own, until the test
// ends. root is the path of the checkout.
func Run(t testing.TB, root string) *Cluster {
	t.Helper()
	return run(t, root, Start)
}

// RunForNodes is Run of StartForNodes.
func RunForNodes(t testing.TB, root string) *Cluster {
	t.Helper()
	return run(t, root, StartForNodes)
}

func run(t testing.TB, root string, start func(ctx context.Context, p Programs, dir string) (*Cluster, error)) *Cluster {
	t.Helper()
	c, err := start(t.Context(), programs(t, root), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.End()
		c.logFailed(t)
	})
	if err := c.define(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	return c
}

// programs returns the programs that the tests of all packages share.
func programs(t testing.TB, root string) Programs {
	t.Helper()
	p, err := Build(t.Context(), testhome.Dir(t), filepath.Join(root, "internal/kube/kubetest/testserver"))
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("the go command, which builds etcd and kube-apiserver, is not in PATH")
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// define installs the definitions of agent-sandbox, and the project's own.
func (c *Cluster) define(ctx context.Context, root string) error {
	module, err := AgentSandbox(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.InstallCRDs(ctx, filepath.Join(module, "k8s/crds")),
		c.InstallCRDs(ctx, filepath.Join(root, OwnCRDs)))
}

func (c *Cluster) logFailed(t testing.TB) {
	t.Helper()
	if t.Failed() {
		t.Logf("the API server's log:\n%s", c.Log())
	}
}

// A Shared is a cluster of all tests of a package that leave it as they found it, and run one after
// another: the start of one costs seconds of the processor. Its zero value has not started; TestMain calls
// Close.
type Shared struct {
	mu      sync.Mutex
	dir     string
	cluster *Cluster
}

// Use returns the cluster, and starts it for the first test that asks. prepare is called once, after the
// start; nil: nothing is.
func (s *Shared) Use(t testing.TB, root string, prepare func(ctx context.Context, c *Cluster) error) *Cluster {
	t.Helper()
	p := programs(t, root)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == nil {
		if err := s.start(t.Context(), p, root, prepare); err != nil {
			t.Fatal(err)
		}
	}
	c := s.cluster
	t.Cleanup(func() { c.logFailed(t) })
	return c
}

func (s *Shared) start(ctx context.Context, p Programs, root string,
	prepare func(ctx context.Context, c *Cluster) error) (err error) {
	if s.dir, err = os.MkdirTemp("", "kubetest"); err != nil { // it outlives the test's own folder
		return err
	}
	if s.cluster, err = Start(ctx, p, s.dir); err == nil {
		if err = s.cluster.define(ctx, root); err == nil && prepare != nil {
			err = prepare(ctx, s.cluster)
		}
	}
	if err != nil {
		return errors.Join(err, s.close())
	}
	return nil
}

// Close ends the cluster, if it has started.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}

// close is Close. The caller holds mu.
func (s *Shared) close() error {
	if s.cluster != nil {
		s.cluster.End()
		s.cluster = nil
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}
