// Package pod runs a pod in a sandbox: its containers are groups of processes there. The sandbox
// is untrusted: what it answers is bounded, and names nothing of the host.
package pod

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/fsimage/tar2erofs"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/shim/guest"
	"turnstone.dev/turnstone/shim/podnet"
	"turnstone.dev/turnstone/shim/rootfs"
	"turnstone.dev/turnstone/shim/spec"
	"turnstone.dev/turnstone/wire"
)

// The helper's static program, and the line of sha256sum about it, which saves its digest at each start of a pod. The
// build writes both before it builds the shim.
//
//go:embed all:bin
var programs embed.FS

var errNoHelper = errors.New("the shim was built without its helper: run make shim")

func podinit() ([]byte, error) {
	b, err := programs.ReadFile("bin/podinit")
	if err != nil {
		return nil, errNoHelper
	}
	return b, nil
}

// Options are the settings of a node.
type Options struct {
	Home      string // the state directory
	Substrate string // its name, or driver.Auto
	Emulate   bool   // without KVM a microVM may be emulated (TCG), which is slow
	Kernel    kernel.Choice
	Programs  driver.Programs
	MakeImage func(ctx context.Context, o rootfs.Order) error // see rootfs.Images
	Progress  func(string)
}

// A Pod is a running sandbox with containers. Its methods are safe for concurrent use.
type Pod struct {
	sb      *sandbox.Sandbox
	net     *podnet.Network
	asked   *spec.Pod
	began   time.Time
	volumes volumes
	images  images
	making  names
	lanes   lanes
	ports   *wire.Client  // of port-forwards; nil: none
	helpers chan struct{} // has an entry for each command of the helper that runs
	starts  chan struct{} // has an entry for each process that is started
	copies  chan struct{} // has an entry for each folder that is copied in
	say     func(string)

	unforward context.CancelFunc // nil: nothing is forwarded
}

// Start starts the sandbox of a pod, whose network is that of the namespace at netns; empty: none.
func Start(ctx context.Context, o Options, p *spec.Pod, netns string) (_ *Pod, err error) {
	dir, err := statedir.Open(o.Home)
	if err != nil {
		return nil, err
	}
	settings, err := config.Load(dir.Root)
	if err != nil {
		return nil, err
	}
	template, err := templateOf(dir)
	if err != nil {
		return nil, fmt.Errorf("the template of pods: %w", err)
	}
	pod := &Pod{asked: p, began: time.Now(), helpers: make(chan struct{}, maxHelpers),
		starts: make(chan struct{}, maxStarting), copies: make(chan struct{}, maxCopies), say: o.Progress}
	if pod.images.onHost.Dir, err = dir.MkdirAll("pods", "roots"); err != nil {
		return nil, err
	}
	pod.images.onHost.Make = o.MakeImage
	pod.lanes.open = pod.connect
	defer func() {
		if err != nil {
			_ = pod.Close()
		}
	}()
	req := sandbox.Request{Template: template, Image: template.Name, Shape: p.Shape,
		Hostname: p.Hostname, Driver: o.Substrate, Disk: guest.Disk,
		Needs:    driver.Needs{Native: !o.Emulate},
		Kernel:   o.Kernel.Over(settings.GuestKernel()),
		Progress: o.Progress, Lap: func(string) {}}
	req.Shape.Network = false
	if netns != "" {
		if pod.net, err = podnet.Open(netns); err != nil {
			return nil, fmt.Errorf("the pod's network: %w", err)
		}
	}
	if n := pod.net; n != nil {
		req.Network.Carrier = &sandbox.Carrier{MAC: n.MAC, MTU: n.MTU, Carry: n.Carry,
			Guest: wire.SandboxNetwork{Address: n.Address, Gateway: n.Gateway,
				DNS: append([]string{}, p.DNS.GetServers()...)}}
	}
	launcher := sandbox.New(dir)
	launcher.Programs = o.Programs
	if pod.sb, err = launcher.Start(ctx, req); err != nil {
		return nil, err
	}
	if err := pod.writeEtc(ctx); err != nil {
		return nil, err
	}
	pod.forward()
	return pod, nil
}

// forward serves what is dialled in the pod's network namespace. Without it only port-forwards are
// missing.
func (p *Pod) forward() {
	ctx, cancel := context.WithCancel(context.Background())
	p.unforward = cancel
	if p.net == nil {
		return
	}
	ports, err := p.connect()
	if err == nil {
		p.ports = ports
		err = p.net.Forward(ctx, func(ctx context.Context, port uint16) (io.ReadWriteCloser, error) {
			return ports.ConnectPort(ctx, wire.SandboxConnectParams{Port: int64(port), Loopback: true})
		})
	}
	if err != nil {
		p.say("port-forwards do not work: " + err.Error())
	}
}

// Done is closed when the sandbox has ended; Err then tells why.
func (p *Pod) Done() <-chan struct{} { return p.sb.Done() }

// Err returns why the sandbox ended.
func (p *Pod) Err() error { return p.sb.Err() }

// Substrate returns what the pod runs on.
func (p *Pod) Substrate() string { return p.sb.Substrate() }

// Used returns what the sandbox has used.
func (p *Pod) Used() turnstone.Used { return p.sb.Used() }

// Close ends the sandbox with all its containers.
func (p *Pod) Close() error {
	p.volumes.close()
	if p.unforward != nil {
		p.unforward()
	}
	var err error
	if p.sb != nil {
		err = p.sb.Close()
	}
	if p.lanes.close(); p.ports != nil {
		_ = p.ports.Close()
	}
	if p.net != nil {
		err = errors.Join(err, p.net.Close())
	}
	p.volumes.done.Wait()
	if p.images.onHost.Dir != "" {
		p.images.onHost.Sweep()
	}
	return err
}

// templateOf returns the template of pods, whose image is made once for each helper: empty folders,
// and the helper.
func templateOf(dir *statedir.Dir) (*turnstone.Template, error) {
	sum, err := programs.ReadFile("bin/podinit.sha256")
	if err != nil {
		return nil, errNoHelper
	}
	key := sha256.Sum256(append([]byte("pod image v3\x00"), sum...))
	folder, err := dir.MkdirAll("pods")
	if err != nil {
		return nil, err
	}
	// Its name has the digest, which takes some milliseconds of each pod otherwise.
	name := "image-" + hex.EncodeToString(key[:8]) + "-"
	all, err := filepath.Glob(filepath.Join(folder, name+"*.erofs"))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		path, err := writeImage(folder, name)
		if err != nil {
			return nil, err
		}
		all = []string{path}
	}
	st, err := os.Stat(all[0])
	if err != nil {
		return nil, err
	}
	hash := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(all[0]), name), ".erofs")
	digest, err := turnstone.ParseDigest("sha256:" + hash)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", all[0], err)
	}
	return &turnstone.Template{Name: "pod", Digest: digest, Root: all[0], RootDigest: digest,
		Size: st.Size(), Built: time.Unix(0, 0)}, nil
}

// writeImage makes the image in a folder, and returns its path, which ends with its digest.
func writeImage(folder, name string) (path string, err error) {
	program, err := podinit()
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(folder, ".image-*")
	if err != nil {
		return "", err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	stream, err := imageFiles(program)
	if err != nil {
		return "", err
	}
	w := tar2erofs.New(f, tar2erofs.Options{Latest: time.Unix(0, 0), TempDir: folder})
	if err = w.AddTar(stream, nil); err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", err
	}
	image, err := os.ReadFile(f.Name())
	if err != nil {
		return "", err
	}
	if err = f.Chmod(0o444); err != nil {
		return "", err
	}
	sum := sha256.Sum256(image)
	path = filepath.Join(folder, name+hex.EncodeToString(sum[:])+".erofs")
	return path, os.Rename(f.Name(), path)
}

// imageFiles returns the files of the image as a tar stream.
func imageFiles(program []byte) (io.Reader, error) {
	var stream bytes.Buffer
	tw := tar.NewWriter(&stream)
	var err error
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "etc", "root", "workspace",
		guest.Dir[1:], guest.Volumes[1:], guest.Images[1:], guest.Disk[1:], guest.Shm[1:]} {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}
		if d == "tmp" || d == guest.Shm[1:] {
			h.Mode = 0o1777
		}
		err = errors.Join(err, tw.WriteHeader(h))
	}
	for _, f := range []struct {
		name string
		b    []byte
	}{{guest.Program[1:], program}, {"etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\n")},
		{"etc/group", []byte("root:x:0:\n")}} {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o755, Size: int64(len(f.b))}
		if err = errors.Join(err, tw.WriteHeader(h)); err == nil {
			_, err = tw.Write(f.b)
		}
	}
	return &stream, errors.Join(err, tw.Close())
}
