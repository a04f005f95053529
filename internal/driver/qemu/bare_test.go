package qemu

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/bench/size"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// bareSize is the number of bytes that pass the bare channel.
const bareSize = 256 << 20

// bareChannel prints how many MB/s `cat` moves through a virtio-serial port that carries nothing
// else, read by a plain loop: the reference for the wire. The machine is booted, because the
// snapshot does not contain such a port.
func bareChannel(h *statedir.Dir) error {
	dir, err := os.MkdirTemp("", "turn-bare-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := net.Listen("unix", filepath.Join(dir, "port"))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Join(dir, "port"),
		0o666)); err != nil {
		return err
	}
	_, man, err := newest(h)
	if err != nil {
		return err
	}
	ctx := context.Background()
	vm, err := bootWithPort(ctx, h, man, filepath.Join(dir, "port"))
	if err != nil {
		return err
	}
	defer func() { _ = vm.Close() }()
	port, err := l.Accept()
	if err != nil {
		return err
	}
	if err := vm.wait(ctx, accelTCG.patience()); err != nil {
		return err
	}
	link, err := wire.NewLink(vm.agent, true)
	if err != nil {
		return err
	}
	stream, err := link.Open()
	if err != nil {
		return err
	}
	c := wire.NewClient(stream)
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy)
	if _, err := c.SandboxConfigure(ctx, &wire.SandboxConfigureParams{Entropy: entropy,
		Time:    time.Now().Format(time.RFC3339Nano),
		Scratch: scratchSerial, Hostname: "bare",
		MachineID: "0123456789abcdef0123456789abcdef"}); err != nil {
		return err
	}
	began, bytes := time.Now(), size.OfProgram().Of(bareSize)
	read := make(chan int64, 1)
	go func() {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard},
			struct{ io.Reader }{io.LimitReader(port, int64(bytes))}, make([]byte, 256<<10))
		read <- n
	}()
	script := fmt.Sprintf(
		`set -eo pipefail; for p in /sys/class/virtio-ports/*; do if [ $(cat $p/name) = bare ]; `+
			`then mknod /tmp/port c $(tr : ' ' < $p/dev); fi; done; `+
			`head -c %d /dev/zero | cat > /tmp/port`, bytes)
	var said strings.Builder
	end, err := c.Start(ctx, wire.ProcessStartParams{Argv: []string{"bash", "-c", script}},
		wire.Stdio{Out: &said, Err: &said})
	if err != nil || end.Exit.ExitCode != 0 {
		return fmt.Errorf("%v: exit %d: %s", err, end.Exit.ExitCode, said.String())
	}
	n := <-read
	fmt.Printf("%.1f\n", float64(n)/1e6/time.Since(began).Seconds())
	return nil
}

// bootWithPort boots the newest snapshot's machine with an additional port.
func bootWithPort(ctx context.Context, h *statedir.Dir, man manifest,
	socket string) (*machine, error) {
	m := substrate.Machine{Root: os.Getenv("TURNSTONE_BENCH_ROOT"), Shape: man.Identity.Shape}
	var err error
	if m.Initramfs, err = withDigest(h.Path("kernel", "initramfs-*.cpio"), man.Identity.Init); err != nil {
		return nil, err
	}
	if m.Kernel, err = withDigest(h.Path("kernel", "*", "vmlinux*"), man.Identity.Kernel); err != nil {
		return nil, err
	}
	// the port is at a path of the host
	s := &Substrate{home: h, accel: man.Identity.Accel, wall: Jail{Wall: open}}
	binary, err := host.FindSystem(binaryName)
	if err != nil {
		return nil, err
	}
	s.binary = binary
	s.more = []string{"-chardev", "socket,id=bare,path=" + socket,
		"-device", "virtio-serial-pci,id=bare",
		"-device", "virtserialport,bus=bare.0,chardev=bare,name=bare"}
	return s.bootFresh(ctx, m)
}

// withDigest returns the file that matches a pattern and has a digest. A state directory has files of several kernels
// and agents.
func withDigest(pattern string, want turnstone.Digest) (string, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		got, err := turnstone.DigestReader(f)
		_ = f.Close()
		if err == nil && got == want {
			return path, nil
		}
	}
	return "", fmt.Errorf("no file %s has the digest %s", pattern, want)
}
