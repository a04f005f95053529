package service

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"turnstone.dev/turnstone"
)

// Name is the name of the runtime in containerd's configuration.
const Name = "io.containerd.turnstone.v2"

// Register makes the service known to the shim's main function.
func Register() {
	registry.Register(&plugin.Registration{Type: plugins.TTRPCPlugin, ID: "turnstone",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			pp, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			ss, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			settings, err := Load(os.Getenv)
			if err != nil {
				return nil, err
			}
			return New(ic.Context, pp.(shim.Publisher), ss.(shutdown.Service), settings), nil
		}})
}

// A Manager starts shims, and removes what one that was killed has left.
type Manager struct{}

// Name implements shim.Shim.
func (Manager) Name() string { return Name }

// Start implements shim.Shim: it starts the shim of a pod in the background.
func (Manager) Start(ctx context.Context, p *bootapi.BootstrapParams) (_ *bootapi.BootstrapResult,
	err error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	address, socket, err := newSocket(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = socket.Close()
		if err != nil {
			_ = shim.RemoveSocket(address)
		}
	}()
	socket.SetUnlinkOnClose(false)
	file, err := socket.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"-namespace", ns, "-id", p.GetInstanceID(), "-address",
		p.GetContainerdGrpcAddress()}
	if p.GetLogLevel() <= bootapi.LogLevel_LOG_LEVEL_DEBUG {
		args = append(args, "-debug")
	}
	options, err := handlerOptions(p, os.Args[0], homeOf(os.Getenv))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), optionsVar+"="+options, socketVar+"="+address)
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if forTask() {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
		cmd.Env = append(cmd.Env, networkVar+"="+identity(ownNetwork))
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }()
	if err := shim.AdjustOOMScore(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		return nil, err
	}
	return &bootapi.BootstrapResult{Version: 3, Protocol: "ttrpc", Address: address}, nil
}

// newSocket makes the socket of a shim. Its address differs from that of every other shim, also from
// those of the same instance: a shim is told that it may end before it has ended, and a later one that
// had the same address would lose its socket to the former's last steps.
func newSocket(ctx context.Context, p *bootapi.BootstrapParams) (address string, _ *net.UnixListener,
	err error) {
	dir := p.GetSocketDir()
	if dir == "" {
		dir = filepath.Join(defaults.DefaultStateDir, "s")
	}
	address, err = shim.CreateSocketAddress(ctx, dir, p.GetContainerdGrpcAddress(),
		filepath.Join(p.GetInstanceID(), rand.Text()), false)
	if err != nil {
		return "", nil, err
	}
	socket, err := shim.NewSocket(address)
	if err != nil {
		return "", nil, err
	}
	return address, socket, nil
}

// forTask reports whether the shim is started for a container without a pod. The folder of its bundle,
// in which it is started, is then below that of containerd's tasks, and not below that of sandboxes.
func forTask() bool {
	bundle, err := os.Getwd()
	return err == nil && filepath.Base(filepath.Dir(filepath.Dir(bundle))) == taskPlugin
}

// taskPlugin is the name of containerd's plug-in that keeps tasks.
const taskPlugin = string(plugins.RuntimePluginV2) + ".task"

// Stop implements shim.Shim: it removes what a shim that has ended has left of a bundle. The
// machine has ended with its shim.
func (Manager) Stop(_ context.Context, id string) (shim.StopStatus, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, err
	}
	root := filepath.Join(filepath.Dir(cwd), id, "rootfs")
	if _, err := os.Stat(root); err == nil {
		if err := mount.UnmountRecursive(root, 0); err != nil {
			return shim.StopStatus{}, err
		}
	}
	removeSocket(filepath.Join(filepath.Dir(cwd), id))
	return shim.StopStatus{ExitedAt: time.Now(), ExitStatus: 128 + int(syscall.SIGKILL)}, nil
}

// removeSocket removes the socket of the shim of a bundle, if nobody serves it any more.
func removeSocket(bundle string) {
	if address := socketOf(bundle); address != "" && !shim.CanConnect(address) {
		_ = shim.RemoveSocket(address)
	}
}

// socketOf returns the address of the shim of a bundle, if containerd has noted it.
func socketOf(bundle string) string {
	var to struct{ Address string }
	text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json"))
	if err != nil || json.Unmarshal(text, &to) != nil {
		return ""
	}
	return to.Address
}

// Info implements shim.Shim.
func (Manager) Info(_ context.Context, options io.Reader) (*types.RuntimeInfo, error) {
	if _, err := io.Copy(io.Discard, io.LimitReader(options, 1<<20)); err != nil {
		return nil, err
	}
	// Every mount is a copy, so what is read-only is so with all below it. containerd 2.4.2 ends if it
	// is asked for such a mount of a runtime that says nothing of its features.
	f, err := typeurl.MarshalAnyToProto(&features.Features{OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version, MountOptions: []string{"ro", "rro"}})
	if err != nil {
		return nil, err
	}
	return &types.RuntimeInfo{Name: Name, Features: f,
		Version: &types.RuntimeVersion{Version: turnstone.Version}}, nil
}
