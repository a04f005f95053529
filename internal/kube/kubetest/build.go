// Package kubetest starts a real etcd and kube-apiserver on loopback, for tests of what serves
// objects of Kubernetes. There are no controllers, no scheduler and no nodes in it.
package kubetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// Programs are the paths of the two programs.
type Programs struct{ Etcd, APIServer string }

// packages are what Build builds, by the names of the programs.
var packages = map[string]string{
	"etcd":           "go.etcd.io/etcd/server/v3",
	"kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
}

// Build returns the programs of the versions that the go.mod in the folder module names. They are
// built once for each version, in the folder dir, which tests of several packages may share. Where
// they are missing and there is no Go, such as for the ordinary user that repeats the tests, the error
// is exec.ErrNotFound.
func Build(ctx context.Context, dir, module string) (Programs, error) {
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return Programs{}, err
	}
	sum := sha256.Sum256(mod)
	of := func(name string) string {
		return filepath.Join(dir, name+"-"+hex.EncodeToString(sum[:6]))
	}
	p := Programs{Etcd: of("etcd"), APIServer: of("kube-apiserver")}
	if built(p.Etcd) && built(p.APIServer) {
		return p, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return Programs{}, err
	}
	locked, err := lock(filepath.Join(dir, "kubetest.lock"))
	if err != nil {
		return Programs{}, err
	}
	defer func() { _ = locked.Close() }()
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := build(ctx, locked, module, packages[name], of(name)); err != nil {
			return Programs{}, err
		}
	}
	return p, nil
}

// BuildNode returns the folder of kube-controller-manager, kube-scheduler and kubelet, which are built as Build does it.
func BuildNode(ctx context.Context, dir, module string) (folder string, err error) {
	mod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(mod)
	folder = filepath.Join(dir, "kubelet-"+hex.EncodeToString(sum[:6]))
	if _, err := exec.LookPath("go"); err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	locked, err := lock(folder + ".lock")
	if err != nil {
		return "", err
	}
	defer func() { _ = locked.Close() }()
	for _, name := range []string{"kube-controller-manager", "kube-scheduler", "kubelet"} {
		if err := build(ctx, locked, module, "k8s.io/kubernetes/cmd/"+name, filepath.Join(folder, name)); err != nil {
			return "", err
		}
	}
	return folder, nil
}

func built(program string) bool { _, err := os.Stat(program); return err == nil }

// sharedTags are those of the project's own build, so that what both consist of is compiled once.
const sharedTags = "-tags=netgo,osusergo"

// build builds a program, unless another process has built it. go keeps the lock as long as it runs, also when this
// process was killed: of what takes minutes nothing is done twice at a time.
func build(ctx context.Context, locked *os.File, module, pkg, program string) error {
	if built(program) {
		return nil
	}
	tmp := fmt.Sprintf("%s.%d", program, os.Getpid())
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", sharedTags, "-buildvcs=false", "-ldflags=-s -w",
		"-o", tmp, pkg)
	cmd.Dir, cmd.ExtraFiles = module, []*os.File{locked}
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return kv == "GOFLAGS" }),
		"CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return os.Rename(tmp, program)
}

// lock waits for the lock of a file, so that one process builds at a time. Closing the file ends it.
func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
