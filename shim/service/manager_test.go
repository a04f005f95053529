package service

import (
	"os"
	"strings"
	"testing"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
)

// A shim that ends removes its socket after its successor, of the same instance, has made another:
// both the service and containerd's own main function do so.
func TestSocketOfSuccessor(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), "lone")
	dir, err := os.MkdirTemp("", "") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &bootapi.BootstrapParams{InstanceID: "one", SocketDir: &dir,
		ContainerdGrpcAddress: "/run/containerd/containerd.sock"}
	first, socket, err := newSocket(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	second, successor, err := newSocket(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	defer successor.Close()
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	ofInstance, err := shim.CreateSocketAddress(ctx, dir, p.GetContainerdGrpcAddress(), "one", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{first, ofInstance} {
		_ = shim.RemoveSocket(address)
	}
	if !shim.CanConnect(second) {
		t.Errorf("the successor's socket, %s, is gone", second)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || !strings.HasSuffix(second, left[0].Name()) {
		t.Errorf("left: %v", left)
	}
}
