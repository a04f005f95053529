package machine

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone/internal/guest/kernel/need"
)

// A kernelView contains the paths at which the running kernel describes itself. The zero value
// reads none; tests use their own folders.
type kernelView struct {
	proc, sys, dev string
}

var runningKernel = kernelView{proc: "/proc", sys: "/sys", dev: "/dev"}

// errUntold means that the running kernel does not report the feature.
var errUntold = errors.New("the kernel does not tell")

// has returns nil if the kernel has n, errUntold if the kernel does not report it, and otherwise
// the reason why it lacks n.
func (k kernelView) has(n need.Need) error {
	switch n.Name {
	case "proc", "sysfs", "devtmpfs", "devpts", "tmpfs", "cgroup2", "erofs", "ext4", "overlay":
		return k.hasFileSystem(n.Name)
	case "cgroup-memory", "cgroup-pids", "cgroup-cpu":
		return k.hasController(strings.TrimPrefix(n.Name, "cgroup-"))
	case "cgroup-kill":
		return k.hasGroupKill()
	case "virtio-blk", "virtio-console", "virtio-net", "virtio-rng", "virtio-balloon":
		return exists(k.sys + "/bus/virtio/drivers/" + strings.ReplaceAll(n.Name, "-", "_"))
	case "vmgenid": // an ACPI driver before Linux 6.10, a platform driver since
		if exists(k.sys+"/bus/acpi/drivers/vmgenid") == nil {
			return nil
		}
		return exists(k.sys + "/bus/platform/drivers/vmgenid")
	case "smp":
		return k.hasCPUs()
	case "initramfs", "elf", "console", "futex", "epoll", "eventfd":
		return nil // without it the agent, which reports, would not run, or could not report
	}
	if path := map[string]string{
		"virtio-pci":      k.sys + "/bus/pci/drivers/virtio-pci",
		"virtio-mmio":     k.sys + "/bus/platform/drivers/virtio-mmio",
		"virtio-vsock":    k.sys + "/bus/virtio/drivers/vmw_vsock_virtio_transport",
		"acpi":            k.sys + "/bus/acpi",
		"pid-namespaces":  k.proc + "/self/ns/pid",
		"user-namespaces": k.proc + "/self/ns/user",
		"modules":         k.proc + "/modules",
		"tun":             k.dev + "/net/tun",
	}[n.Name]; path != "" {
		return exists(path)
	}
	return tryNeed(n.Name)
}

// tryNeed tries the feature.
func tryNeed(name string) error {
	switch name {
	case "memfd":
		return closed(unix.MemfdCreate("turnstone", unix.MFD_CLOEXEC))
	case "inotify":
		return closed(unix.InotifyInit1(unix.IN_CLOEXEC))
	case "unix":
		return closed(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	case "inet":
		return closed(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
	case "packet":
		return closed(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0))
	case "seccomp":
		// Without a filter the call fails with EFAULT; without seccomp with EINVAL (prctl(2)).
		if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0,
			0); err != unix.EFAULT {
			return os.NewSyscallError("prctl", err)
		}
		return nil
	case "dummy":
		return tryDummy()
	}
	return errUntold
}

func closed(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// tryDummy creates a dummy network card in a separate network namespace, which ends with the
// thread.
func tryDummy() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		// EINVAL: the kernel has no network namespaces
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil && err != unix.EINVAL {
			result <- err
			return
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err == nil {
			err = h.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "turnstone0"}})
			h.Close()
		}
		result <- err
	}()
	return <-result
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

// hasFileSystem reads /proc/filesystems, which also proves that proc exists.
func (k kernelView) hasFileSystem(name string) error {
	f, err := os.Open(k.proc + "/filesystems")
	if err != nil {
		return err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 0 && words[len(words)-1] == name {
			return nil
		}
	}
	return unix.ENODEV
}

// hasController reads the controllers of the root control group.
func (k kernelView) hasController(name string) error {
	b, err := os.ReadFile(k.sys + "/fs/cgroup/cgroup.controllers")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(string(b)), name) {
		return unix.ENODEV
	}
	return nil
}

// hasGroupKill creates a temporary group, because the root has no such file.
func (k kernelView) hasGroupKill() error {
	dir := filepath.Join(k.sys, "fs/cgroup/turnstone-check")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	defer unix.Rmdir(dir)
	return exists(filepath.Join(dir, "cgroup.kill"))
}

// hasCPUs checks that the kernel was built for several CPUs: kernel_max is the highest CPU number.
func (k kernelView) hasCPUs() error {
	b, err := os.ReadFile(k.sys + "/devices/system/cpu/kernel_max")
	if err == nil && strings.TrimSpace(string(b)) == "0" {
		return unix.ENODEV
	}
	return err
}

// A lackError ends a start: the kernel lacks a feature that the agent needs.
type lackError struct{ need need.Need }

func (e *lackError) Error() string { return e.need.Lack() }

// lacks returns the first necessary feature, for this kind of machine, that the kernel lacks.
func (k kernelView) lacks(kind need.Level) error {
	for _, n := range need.All() {
		if n.Level != need.Always && n.Level != kind {
			continue
		}
		if err := k.has(n); err != nil && err != errUntold {
			return &lackError{n}
		}
	}
	return nil
}

// lacksAny returns the first of these needs that the kernel lacks, as an error.
func (k kernelView) lacksAny(names ...string) error {
	for _, name := range names {
		n, _ := need.Of(name)
		if err := k.has(n); err != nil && err != errUntold {
			return &lackError{n}
		}
	}
	return nil
}

// kindOf returns the kind of machine for which a command line was made.
func kindOf(cmdline string) need.Level {
	if _, ok := word(cmdline, "turnstone.vsock="); ok {
		return need.Firecracker
	}
	return need.QEMU
}

// The report that a machine with the word turnstone.check=NONCE on its command line prints on its
// console, instead of a start: a line for each need, the kernel's description, and a last line.
// Each begins with the nonce, so that no other output is mistaken for it.
const (
	CheckWord   = "turnstone.check="
	CheckStart  = "check "  // and the nonce and a blank
	CheckHas    = "has "    // and the need's name
	CheckNot    = "lacks "  // and the need's name
	CheckKernel = "kernel " // and its release
	CheckCPUs   = "cpus "   // and their number
	CheckOpen   = "open"    // programs can read the kernel's memory
	CheckEnd    = "ends"
)

// checks returns the nonce of the requested report; empty: the command line requests none.
func checks(cmdline string) string {
	nonce, _ := word(cmdline, CheckWord)
	return nonce
}

// report describes the kernel and its features.
func (k kernelView) report(nonce string, is kernelWord, say func(line string)) {
	tell := func(what string) { say(CheckStart + nonce + " " + what) }
	for _, n := range need.All() {
		switch err := k.has(n); err {
		case nil:
			tell(CheckHas + n.Name)
		case errUntold:
		default:
			tell(CheckNot + n.Name)
		}
	}
	tell(CheckKernel + is.release)
	tell(CheckCPUs + strconv.Itoa(is.cpus))
	if is.open {
		tell(CheckOpen)
	}
	tell(CheckEnd)
}
