package testbed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// tools are the programs in the module tools, by package.
var tools = []string{
	"github.com/containerd/containerd/v2/cmd/containerd",
	"sigs.k8s.io/cri-tools/cmd/crictl",
	"github.com/containernetworking/plugins/plugins/main/bridge",
	"github.com/containernetworking/plugins/plugins/main/loopback",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
}

// critest is a test, and built as one.
const critest = "sigs.k8s.io/cri-tools/cmd/critest"

// Tools builds the programs of the module at dir once for each version, below the folder home, and
// returns their folder. Without Go the error is exec.ErrNotFound.
func Tools(ctx context.Context, home, dir string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(mod)
	bin := filepath.Join(home, "containerd-"+hex.EncodeToString(sum[:6]))
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(home, ".containerd-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	for _, pkg := range append(tools, critest) {
		args := []string{"build", "-trimpath", "-ldflags=-s -w",
			"-tags=no_btrfs,no_devmapper,no_zfs", "-o", filepath.Join(tmp, path.Base(pkg)), pkg}
		if pkg == critest {
			args = append([]string{"test", "-c"}, args[1:]...)
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
	}
	err = os.Rename(tmp, bin)
	if errors.Is(err, os.ErrExist) { // another test was faster
		err = nil
	}
	return bin, err
}
