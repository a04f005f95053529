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
	"slices"
	"strings"
	"time"

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
	began := time.Now()
	read := make(chan int64, 1)
	go func() {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard},
			struct{ io.Reader }{io.LimitReader(port, bareSize)}, make([]byte, 256<<10))
		read <- n
	}()
	script := fmt.Sprintf(
		`set -eo pipefail; for p in /sys/class/virtio-ports/*; do if [ $(cat $p/name) = bare ]; `+
			`then mknod /tmp/port c $(tr : ' ' < $p/dev); fi; done; `+
			`head -c %d /dev/zero | cat > /tmp/port`, bareSize)
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
	var m substrate.Machine
	initramfs, _ := filepath.Glob(h.Path("kernel", "initramfs-*.cpio"))
	kernels, _ := filepath.Glob(h.Path("kernel", "*", "vmlinux"))
	if len(initramfs) == 0 || len(kernels) == 0 {
		return nil, errors.New("there is no kernel to boot")
	}
	slices.SortFunc(initramfs, func(a, b string) int {
		x, _ := os.Stat(a)
		y, _ := os.Stat(b)
		return y.ModTime().Compare(x.ModTime())
	})
	m.Kernel, m.Initramfs, m.Root, m.Shape = kernels[0], initramfs[0],
		os.Getenv("TURNSTONE_BENCH_ROOT"), man.Identity.Shape
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
