package kubetest

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"turnstone.dev/turnstone/internal/testhome"
)

// Run starts a cluster with the definitions of agent-sandbox, and the project's own, until the test
// ends. root is the path of the checkout.
func Run(t testing.TB, root string) *Cluster {
	t.Helper()
	p, err := Build(t.Context(), testhome.Dir(t), filepath.Join(root, "internal/kube/kubetest/testserver"))
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("the go command, which builds etcd and kube-apiserver, is not in PATH")
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), p, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.End()
		if t.Failed() {
			t.Logf("the API server's log:\n%s", c.Log())
		}
	})
	module, err := AgentSandbox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{filepath.Join(module, "k8s/crds"), filepath.Join(root, OwnCRDs)} {
		if err := c.InstallCRDs(t.Context(), folder); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
