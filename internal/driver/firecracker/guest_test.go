package firecracker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/turntest"
	"turnstone.dev/turnstone/substrate"
)

// TestGuest starts the guest that Firecracker would start: its kernel by PVH with this command
// line, and its disks as virtio-mmio devices that ACPI describes, without serial numbers. QEMU's
// machine type microvm has the same devices, except the vsock, so the agent gets as far as
// listening.
func TestGuest(t *testing.T) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip(err)
	}
	h := turntest.Home(t)
	m := turntest.Machine(t, h, "base")
	disks := diskFiles(t, m)
	t.Run("ready", func(t *testing.T) {
		if out := guest(t, qemu, m, disks); !strings.Contains(out, console.ReadyLine) {
			t.Errorf("its console: %q", out)
		}
	})
	t.Run("another order", func(t *testing.T) { // the names depend on the order
		wrong := slices.Clone(disks)
		wrong[0], wrong[2] = wrong[2], wrong[0]
		if out := guest(t, qemu, m, wrong); strings.Contains(out, console.ReadyLine) ||
			!strings.Contains(out, "turnstone-agent: failed: ") {
			t.Errorf("its console: %q", out)
		}
	})
}

// diskFiles returns the files of a machine's disks, in the order of driveNames.
func diskFiles(t *testing.T, m substrate.Machine) []string {
	t.Helper()
	s := &Substrate{home: turntest.Home(t)}
	blank, err := disk.Blank(t.Context(), "firecracker.disk", s.home, m.Shape.Disk)
	check(t, err)
	scratch, err := copyFile(t.Context(), filepath.Join(t.TempDir(), "scratch"), blank, 0o600)
	check(t, err)
	check(t, scratch.Close())
	empty, err := s.emptySlot()
	check(t, err)
	files := []string{m.Root, scratch.Name()}
	for len(files) < len(driveNames()) {
		files = append(files, empty)
	}
	return files
}

// guest runs a machine until its agent has reported its state, and returns the console. The clock
// counts instructions, because QEMU's microvm has no timer to calibrate another clock with.
func guest(t *testing.T, qemu string, m substrate.Machine, disks []string) string {
	t.Helper()
	args := []string{"-machine", "microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,accel=tcg",
		"-icount", "shift=2,sleep=off", "-cpu", "max",
		"-m", "512", "-smp", "1", "-nodefaults", "-no-user-config", "-display", "none",
		"-no-reboot", "-serial", "stdio",
		"-kernel", m.Kernel, "-initrd", m.Initramfs, "-append", kernelArgs() + " pci=off"}
	for i, path := range disks {
		args = append(args,
			"-blockdev", fmt.Sprintf(
				"driver=file,node-name=d%d,filename=%s,read-only=%s,locking=off", i, path,
				onOff(i != 1)),
			"-device", fmt.Sprintf("virtio-blk-device,drive=d%d", i))
	}
	args = append(args, "-device", "virtio-rng-device", "-device", "virtio-balloon-device")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, args...)
	out := console.New()
	out.Limit = 64 << 10
	failed := &watch{word: []byte("turnstone-agent: failed"), hit: cancel}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = io.MultiWriter(out, failed), os.Stderr, time.Second
	check(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-out.Ready():
	case <-ended:
	}
	cancel()
	<-ended
	return out.String()
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// A watch calls hit when the word was written and its line has ended.
type watch struct {
	word []byte
	hit  func()
	text bytes.Buffer
}

func (w *watch) Write(p []byte) (int, error) {
	w.text.Write(p)
	if _, rest, ok := bytes.Cut(w.text.Bytes(), w.word); ok && bytes.ContainsRune(rest, '\n') {
		w.hit()
	}
	return len(p), nil
}
