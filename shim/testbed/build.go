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
	"github.com/containerd/containerd/v2/cmd/ctr",
	"sigs.k8s.io/cri-tools/cmd/crictl",
	"github.com/containernetworking/plugins/plugins/main/bridge",
	"github.com/containernetworking/plugins/plugins/main/loopback",
	"github.com/containernetworking/plugins/plugins/ipam/host-local",
}

// tags leave out of containerd what no test needs. Two are the project's own, so that what both consist
// of is compiled once.
const tags = "-tags=netgo,osusergo,no_btrfs,no_devmapper,no_zfs,no_tracing"

// Tools builds the programs of the module at dir once for each version, below the folder home, and
// returns their folder. Without Go the error is exec.ErrNotFound.
func Tools(ctx context.Context, home, dir string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	return once(home, append(mod, tags...), func(tmp string) error {
		return buildAll(ctx, dir, tmp, tools)
	})
}

// Peer builds gVisor's own shim and runsc of the module at dir once for each version, below the folder home, and returns
// their folder. Without Go the error is exec.ErrNotFound.
func Peer(ctx context.Context, home, dir string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	return once(home, mod, func(tmp string) error {
		return errors.Join(build(ctx, dir, "gvisor.dev/gvisor/shim", filepath.Join(tmp, "containerd-shim-runsc-v1"), "build"),
			build(ctx, dir, "gvisor.dev/gvisor/runsc", filepath.Join(tmp, "runsc"), "build"))
	})
}

// once returns a folder below home with what fill has put into it, now or earlier for the same key.
// Without Go the error is exec.ErrNotFound.
func once(home string, key []byte, fill func(tmp string) error) (string, error) {
	sum := sha256.Sum256(key)
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
	if err := fill(tmp); err != nil {
		return "", err
	}
	err = os.Rename(tmp, bin)
	if errors.Is(err, os.ErrExist) { // another test was faster
		err = nil
	}
	return bin, err
}

// Test builds a package of tests of the module at dir into the folder bin of Tools, unless it is
// there, and returns its program.
func Test(ctx context.Context, bin, dir, pkg string) (string, error) {
	out := filepath.Join(bin, path.Base(pkg))
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	tmp := out + ".new"
	if err := build(ctx, dir, pkg, tmp, "test", "-c"); err != nil {
		return "", err
	}
	return out, os.Rename(tmp, out)
}

func buildAll(ctx context.Context, dir, to string, packages []string) error {
	for _, pkg := range packages {
		if err := build(ctx, dir, pkg, filepath.Join(to, path.Base(pkg)), "build"); err != nil {
			return err
		}
	}
	return nil
}

func build(ctx context.Context, dir, pkg, out string, command ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(command, "-trimpath", "-ldflags=-s -w", tags,
		"-o", out, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, text)
	}
	return nil
}
