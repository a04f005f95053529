package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Bed is a running containerd with a registry, all in one folder.
type Bed struct {
	Dir      string
	Registry *Registry
	Handler  string // the runtime of new pods
	options  Options
	cmd      *exec.Cmd
	ended    chan struct{}
	log      *os.File
	network  int
}

// Options of a Bed.
type Options struct {
	Dir   string // an empty folder with a short path
	Tools string // of Tools, or of a Release
	// Release is the version of containerd; empty: that of Tools.
	Release string
	Shim    string // the shim's program
	Runsc   string
	Home    string // the shim's state directory
	// Kernel is the kernel that microVMs boot; empty: Debian's.
	Kernel string
	// Peer is the folder of gVisor's own shim and runsc, as published: another runtime; empty: there is none.
	Peer string
	// Mirrors are registries whose images the bed's own registry has.
	Mirrors []string
}

// New starts a Bed. Close it.
func New(o Options) (*Bed, error) {
	b := &Bed{Dir: o.Dir, options: o, network: 1 + os.Getpid()%250, Handler: Handlers[0]}
	var err error
	if b.Registry, err = Serve(); err != nil {
		return nil, err
	}
	for _, d := range []string{"cni", "logs", "bin", "home"} {
		if err := os.MkdirAll(b.path(d), 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"turnstone", namedHandler} {
		if err := os.Symlink(o.Shim, b.path("bin/containerd-shim-"+name+"-v2")); err != nil {
			return nil, err
		}
	}
	if o.Peer != "" {
		for _, name := range []string{"containerd-shim-runsc-v1", "runsc"} {
			if err := os.Symlink(filepath.Join(o.Peer, name), b.path("bin/"+name)); err != nil {
				return nil, err
			}
		}
	}
	files := map[string]string{"home/shim.toml": "kill_limit = 15\n", "handler.toml": handlerOptions,
		"home/shim-named.toml": handlerOptions,
		"config.toml":          b.config(), "cni/10-pods.conflist": b.cni(),
		"crictl.yaml": fmt.Sprintf("runtime-endpoint: %s\nimage-endpoint: %[1]s\ntimeout: 120\n",
			b.Endpoint()),
		"images.yaml": fmt.Sprintf("defaultTestContainerImage: %s/busybox:latest\n"+
			"webServerTestImage: %[1]s/web:latest\n", b.Registry.Host)}
	for _, host := range o.Mirrors {
		if err := os.MkdirAll(b.path("certs.d/"+host), 0o755); err != nil {
			return nil, err
		}
		files["certs.d/"+host+"/hosts.toml"] = fmt.Sprintf("server = %q\n", "http://"+b.Registry.Host)
	}
	for name, text := range files {
		if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return b, b.Start()
}

func (b *Bed) path(name string) string { return filepath.Join(b.Dir, name) }

// Endpoint returns the address of the CRI.
func (b *Bed) Endpoint() string { return "unix://" + b.path("c.sock") }

// Handlers are the runtimes in containerd's configuration: one for each substrate.
var Handlers = []string{"turnstone", "turnstone-qemu", "turnstone-firecracker"}

// Options of the runtimes in containerd's configuration. Three have the same: themselves, in a file, and in
// one that their program names.
const (
	bodyHandler, fileHandler = "turnstone-body", "turnstone-file"
	namedHandler             = "turnstone-named"
	handlerOptions           = "cpus = 1\nmemory = 268435456\nmax_memory = 300000000\n"
	microVMOptions           = "substrate = %q\nmemory = 536870912\ncpus = 1\n"
)

func (b *Bed) config() string {
	options := map[string]string{Handlers[0]: "", namedHandler: "", bodyHandler: "TypeUrl = \"turnstone\"\n" + handlerOptions,
		fileHandler: fmt.Sprintf("TypeUrl = \"turnstone\"\nConfigPath = %q\n", b.path("handler.toml"))}
	for _, h := range Handlers[1:] {
		options[h] = fmt.Sprintf(microVMOptions, strings.TrimPrefix(h, "turnstone-"))
	}
	runtimes := ""
	for h, o := range options {
		program := "turnstone"
		if h == namedHandler {
			program = h
		}
		runtimes += fmt.Sprintf(`[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.%s]
  runtime_type = "io.containerd.%s.v2"
  sandboxer = "shim"
  disable_pause_image_pull = true
`, h, program)
		if o != "" {
			runtimes += fmt.Sprintf("[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.%s.options]\n%s", h, o)
		}
	}
	if b.options.Peer != "" {
		runtimes += fmt.Sprintf("[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.%s]\n"+
			"  runtime_type = \"io.containerd.runsc.v1\"\n", peerHandler)
	}
	return "version = 3\n" + strings.ReplaceAll(strings.ReplaceAll(`root = "DIR/root"
state = "DIR/state"
[grpc]
  address = "DIR/c.sock"
[ttrpc]
  address = "DIR/c.sock.ttrpc"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "turnstone"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "DIR/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  BINARIES
  conf_dir = "DIR/cni"
`, "DIR", b.Dir), "BINARIES", b.binaries()) + b.pause() + runtimes
}

// before reports whether containerd is older than a minor version, such as "v2.3.".
func (b *Bed) before(minor string) bool {
	return b.options.Release != "" && b.options.Release < minor
}

// binaries names the folder of CNI's plug-ins.
func (b *Bed) binaries() string {
	if b.before("v2.1.") {
		return fmt.Sprintf("bin_dir = %q", b.options.Tools)
	}
	return fmt.Sprintf("bin_dirs = [%q]", b.options.Tools)
}

// The runtime of Options.Peer, whose pods have a pause container.
const (
	peerHandler   = "runsc"
	pauseRegistry = "registry.k8s.io"
	pauseTag      = "3.10"
)

// pause names the image that containerd 2.3 wants also where no container is made of it.
func (b *Bed) pause() string {
	if b.options.Peer != "" {
		return fmt.Sprintf("[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = \"%s/pause:%s\"\n",
			pauseRegistry, pauseTag)
	}
	if b.before("v2.3.") || !b.before("v2.4.") {
		return ""
	}
	return fmt.Sprintf("[plugins.\"io.containerd.cri.v1.images\".pinned_images]\n  sandbox = %q\n",
		b.Registry.Host+"/busybox:1")
}

// bridge is the name of the bridge of the pods' network.
func (b *Bed) bridge() string { return fmt.Sprintf("turntest%d", b.network) }

func (b *Bed) cni() string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge",
"bridge":%q,"isGateway":true,"ipam":{"type":"host-local","dataDir":%q,
"ranges":[[{"subnet":"10.213.%d.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`,
		b.bridge(), b.path("ipam"), b.network)
}

// Start starts containerd, and waits until it answers.
func (b *Bed) Start() (err error) {
	if b.log, err = os.OpenFile(b.path("containerd.log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	b.cmd = exec.Command(filepath.Join(b.options.Tools, "containerd"), "-c", b.path("config.toml"))
	b.cmd.Stdout, b.cmd.Stderr = b.log, b.log
	b.cmd.Env = append(os.Environ(), "PATH="+b.path("bin")+":"+os.Getenv("PATH"),
		"TURN_HOME="+b.options.Home, "TURN_SUBSTRATE=gvisor", "TURN_RUNSC="+b.options.Runsc,
		"TURN_KERNEL="+b.options.Kernel, "TURN_KERNEL_MODULES=")
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		return err
	}
	b.ended = make(chan struct{})
	go func() { _ = b.cmd.Wait(); close(b.ended) }()
	for range 1200 {
		if out, err := b.Crictl(context.Background(), "", "info"); err == nil &&
			!strings.Contains(out, "cni plugin not initialized") {
			return nil
		}
		select {
		case <-b.ended:
			return fmt.Errorf("containerd has ended:\n%s", b.Log())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return errors.New("containerd does not answer")
}

// Kill ends containerd, and nothing else.
func (b *Bed) Kill() {
	_ = b.cmd.Process.Kill()
	<-b.ended
	_ = b.log.Close()
}

// Log returns the end of containerd's log, which has those of the shims.
func (b *Bed) Log() string {
	text, _ := os.ReadFile(b.path("containerd.log"))
	return string(text[max(0, len(text)-20_000):])
}

// Tool runs a program of the tools.
func (b *Bed) Tool(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.options.Tools, name), args...)
	cmd.Dir = b.Dir
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, &errs)
	}
	return out.String(), err
}

// Crictl runs crictl and returns its output.
func (b *Bed) Crictl(ctx context.Context, stdin string, args ...string) (string, error) {
	out, err := b.Tool(ctx, stdin, "crictl", append([]string{"-c", b.path("crictl.yaml")}, args...)...)
	return strings.TrimSpace(out), err
}

// JSON writes v to a new file for crictl, and returns the file's name.
func (b *Bed) JSON(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(b.Dir, "*.json")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	return f.Name(), errors.Join(err, f.Close())
}

// Close removes all pods, ends containerd, and returns what is left of them: processes and mounts.
func (b *Bed) Close() (left []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := b.Crictl(ctx, "", "rmp", "-fa"); err != nil {
		left = append(left, err.Error())
	}
	for range 300 { // a shim ends after its answer
		if left = append(left[:0:0], b.Left()...); len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	b.Kill()
	b.Registry.Close()
	if _, err := net.InterfaceByName(b.bridge()); err == nil {
		_ = exec.Command("ip", "link", "del", b.bridge()).Run()
	}
	return left
}

// Left returns the processes and mounts of pods.
func (b *Bed) Left() (left []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		text, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		words := strings.Split(string(text), "\x00")
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if strings.Contains(string(environ), "TURN_HOME="+b.options.Home+"\x00") &&
			filepath.Base(words[0]) != "containerd" {
			left = append(left, filepath.Base(dir)+": "+strings.Join(words, " "))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.SplitSeq(string(mounts), "\n") {
		if strings.Contains(line, b.path("state")+"/") {
			left = append(left, line)
		}
	}
	return left
}
