package machine

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/kernel/need"
)

// fakeKernel returns a kernel that has every feature that is found in files, and for each need the
// file or directory that a test may remove.
func fakeKernel(t *testing.T) (k kernelView, take map[string]func()) {
	t.Helper()
	root := t.TempDir()
	k = kernelView{proc: filepath.Join(root, "proc"), sys: filepath.Join(root, "sys"),
		dev: filepath.Join(root, "dev")}
	take = map[string]func(){}
	write := func(path, text string) string {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	filesystems := []string{"proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "cgroup2", "erofs",
		"ext4", "overlay"}
	list := func(names []string) string {
		return "nodev\t" + strings.Join(names, "\nnodev\t") + "\n\text9\n"
	}
	write(k.proc+"/filesystems", list(filesystems))
	for _, name := range filesystems {
		take[name] = func() {
			write(k.proc+"/filesystems",
				list(slices.DeleteFunc(slices.Clone(filesystems),
					func(n string) bool { return n == name })))
		}
	}
	controllers := []string{"cpuset", "cpu", "memory", "pids"}
	write(k.sys+"/fs/cgroup/cgroup.controllers", strings.Join(controllers, " ")+"\n")
	for _, name := range controllers[1:] {
		take["cgroup-"+name] = func() {
			write(k.sys+"/fs/cgroup/cgroup.controllers",
				strings.Join(slices.DeleteFunc(slices.Clone(controllers),
					func(n string) bool { return n == name }), " "))
		}
	}
	write(k.sys+"/devices/system/cpu/kernel_max", "511\n")
	take["smp"] = func() { write(k.sys+"/devices/system/cpu/kernel_max", "0\n") }
	for name, path := range map[string]string{
		"virtio-pci": k.sys + "/bus/pci/drivers/virtio-pci/x", "virtio-mmio": k.sys +
			"/bus/platform/drivers/virtio-mmio/x",
		"virtio-blk": k.sys + "/bus/virtio/drivers/virtio_blk/x", "virtio-console": k.sys +
			"/bus/virtio/drivers/virtio_console/x",
		"virtio-net": k.sys + "/bus/virtio/drivers/virtio_net/x", "virtio-rng": k.sys +
			"/bus/virtio/drivers/virtio_rng/x",
		"virtio-balloon": k.sys + "/bus/virtio/drivers/virtio_balloon/x", "virtio-vsock": k.sys +
			"/bus/virtio/drivers/vmw_vsock_virtio_transport/x",
		"vmgenid": k.sys + "/bus/acpi/drivers/vmgenid/x",
	} {
		dir := filepath.Dir(write(path, ""))
		take[name] = func() { _ = os.RemoveAll(dir) }
	}
	for name, path := range map[string]string{
		"pid-namespaces": k.proc + "/self/ns/pid", "user-namespaces": k.proc + "/self/ns/user",
		"modules": k.proc + "/modules",
		"tun":     k.dev + "/net/tun", "cgroup-kill": k.sys +
			"/fs/cgroup/turnstone-check/cgroup.kill",
	} {
		write(path, "")
		take[name] = func() { _ = os.Remove(path) }
	}
	take["acpi"] = func() { _ = os.RemoveAll(k.sys + "/bus/acpi") }
	return k, take
}

// TestMissingNecessity checks that if a kernel lacks a necessary feature, the start ends with its
// name, on machines of the kind that needs it and on no other.
func TestMissingNecessity(t *testing.T) {
	whole, take := fakeKernel(t)
	for _, kind := range []need.Level{need.QEMU, need.Firecracker} {
		if err := whole.lacks(kind); err != nil {
			t.Fatalf("a kernel that has everything: %v", err)
		}
	}
	// cannot be removed from the test
	untaken := []string{"initramfs", "elf", "console", "futex", "epoll", "eventfd", "memfd"}
	for _, n := range need.All() {
		if take[n.Name] == nil {
			if n.Level != need.Optional && !slices.Contains(untaken, n.Name) {
				t.Errorf("%s is not tried", n.Name)
			}
			continue
		}
		k, take := fakeKernel(t)
		take[n.Name]()
		if err := k.has(n); err == nil || errors.Is(err, errUntold) {
			t.Errorf("%s is not missed: %v", n.Name, err)
		}
		for _, kind := range []need.Level{need.QEMU, need.Firecracker} {
			err := k.lacks(kind)
			if wanted := n.Level == need.Always || n.Level == kind; (err != nil) != wanted ||
				wanted && err.Error() != n.Lack() {
				t.Errorf("without %s a machine of %s: %v", n.Name, kind, err)
			}
		}
	}
}

// TestNeedReport checks that the report has a line for each need, and a last line.
func TestNeedReport(t *testing.T) {
	k, take := fakeKernel(t)
	take["erofs"]()
	var lines []string
	k.report("0123", kernelWord{release: "6.9.0-own", cpus: 2, open: true},
		func(line string) { lines = append(lines, line) })
	const at = "check 0123 "
	for _, want := range []string{at + CheckHas + "ext4", at + CheckNot + "erofs",
		at + CheckHas + "console", at + CheckEnd,
		at + CheckKernel + "6.9.0-own", at + CheckCPUs + "2", at + CheckOpen} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %q in %q", want, lines)
		}
	}
	if lines[len(lines)-1] != at+CheckEnd {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
}

func TestKindOf(t *testing.T) {
	if kindOf("console=ttyS0 turnstone.vsock=1024") != need.Firecracker ||
		kindOf("console=ttyS0 xturnstone.vsock=1") != need.QEMU {
		t.Error("the kind of machine is not told by its channel")
	}
	if checks("a turnstone.checked=2 xturnstone.check=1 turnstone.check") != "" ||
		checks("quiet turnstone.check=ab01\n") != "ab01" {
		t.Error("the word that asks for the report is not found")
	}
}

// TestFailedLine checks that the host also shows the hint.
func TestFailedLine(t *testing.T) {
	n, _ := need.Of("erofs")
	if got, want := failedLine(&lackError{n}),
		"failed: the kernel has no EROFS (CONFIG_EROFS_FS)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	err := &turnstone.Error{Subject: "10.0.0.2/24", Err: errors.New("no card"),
		Hint: "run with network: off"}
	if got, want := failedLine(err),
		"failed: 10.0.0.2/24: no card; run with network: off"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestFirstInterface checks that kernels with built-in drivers have interfaces that are not cards.
func TestFirstInterface(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"bond0", "dummy0", "lo", "sit0"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if name, err := firstInterface(dir); err == nil {
		t.Errorf("%s is taken for a network card", name)
	}
	if err := os.MkdirAll(filepath.Join(dir, "eth0", "device"), 0o755); err != nil {
		t.Fatal(err)
	}
	if name, err := firstInterface(dir); err != nil || name != "eth0" {
		t.Errorf("the network card is %q, %v", name, err)
	}
}
