package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/kvm"
)

// What a machine needs, and what it should have: a turn of the default shape and
// a template build take about this much.
const (
	diskNeeded   turnstone.Bytes = 1 << 30
	diskWanted   turnstone.Bytes = 5 << 30
	memoryNeeded turnstone.Bytes = 512 << 20
	memoryWanted turnstone.Bytes = 2 << 30
)

func (c *checker) platform(context.Context) []Finding {
	what := runtime.GOOS + "/" + runtime.GOARCH
	if what != "linux/amd64" {
		return one("platform", StatusFail, what+": turns run on linux/amd64 only", "")
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		what += ", kernel " + unix.ByteSliceToString(u.Release[:])
	}
	return one("platform", StatusOK, fmt.Sprintf("%s, %d CPUs", what, runtime.NumCPU()), "")
}

// kvm explains what QEMU says of KVM: it works, works with this kernel only, or does not.
// Without KVM turns run under gVisor, or many times slower.
func (c *checker) kvm(s scene) []Finding {
	v, slow := s.qemu.kvm, s.withoutKVM()
	say := func(status Status, detail, fix string) []Finding {
		if modules := kvm.Modules(c.root); len(modules) > 0 {
			detail = strings.Join(modules, ", ") + ": " + detail
		}
		return one("kvm", status, detail, fix)
	}
	if s.guestErr != nil && (v.Proven || v.Usable || !v.Known) { // of another kernel than that of the guests
		return say(StatusWarn, "not looked at: the guest kernel, which has to start under it, cannot be had"+slow, "")
	}
	if v.Usable && v.Emulated {
		return say(StatusOK, "a guest runs under it with this kernel only ("+c.kernelName()+"), and not with Debian's: "+kvm.ErrEmulated.Error()+ofCPU(v), "")
	}
	if v.Usable {
		return say(StatusOK, "a guest runs under it"+ofCPU(v), "")
	}
	if v.Kernel {
		return say(StatusWarn, v.Reason+slow, c.guest.Look())
	}
	if v.Proven && v.Emulated && !c.guest.Own {
		return say(StatusWarn, v.Reason+slow+"; `"+c.guest.Look()+"` tries another kernel", "")
	}
	if v.Proven {
		return say(StatusWarn, v.Reason+slow, "")
	}
	if v.Denied {
		return say(StatusWarn, "/dev/kvm may not be opened by those who run QEMU: "+v.Reason+slow, c.kvmAccess())
	}
	f, err := os.OpenFile(filepath.Join(c.root, "dev/kvm"), os.O_RDWR, 0)
	switch {
	case err == nil:
		_ = f.Close()
		if v.Known { // it turns away later
			return say(StatusWarn, "/dev/kvm cannot be used: "+v.Reason+slow, "")
		}
		if who, does := s.firstTurn(driver.QEMU, "KVM"); does {
			return say(StatusWarn, "not tried yet, "+who, tryTurn)
		} else {
			return say(StatusOK, "not tried yet, and "+who, "")
		}
	case errors.Is(err, fs.ErrPermission):
		return say(StatusWarn, "/dev/kvm may not be opened by you"+slow, c.kvmAccess())
	case errors.Is(err, fs.ErrNotExist):
		return say(StatusWarn, "there is no /dev/kvm: virtualization is off in the firmware, or this is a virtual machine itself"+slow, "")
	}
	return say(StatusWarn, err.Error()+slow, "")
}

// withoutKVM says what turns run on where QEMU has no KVM; empty where that is not known, or
// they have it all the same.
func (s scene) withoutKVM() string {
	switch {
	case len(s.decision.Unproven()) > 0:
	case s.chosen() == driver.GVisor:
		return "; turns run under gVisor"
	case s.chosen() == driver.QEMU:
		return "; guests run under QEMU's translator (TCG), many times slower"
	}
	return ""
}

// ofCPU tells the virtual CPU's model, and why it is not the host's.
func ofCPU(v kvm.Verdict) string {
	switch {
	case v.CPU == "":
		return ""
	case v.Why == "":
		return "; CPU model " + v.CPU
	}
	return fmt.Sprintf("; CPU model %s, since QEMU refuses the host's: %s", v.CPU, v.Why)
}

// noKVM says that there is no KVM, or that it is ruled out without a guest.
func (c *checker) noKVM() bool {
	if _, err := os.Stat(filepath.Join(c.root, "dev/kvm")); err != nil {
		return true
	}
	return c.root == "/" && !c.guest.Own && errors.Is(kvm.Try(kvm.Device), kvm.ErrEmulated)
}

// kvmAccess is what lets this user open the device: to be in its group, if that may open it
// at all. Nobody else gets more than before. Root's QEMU has a device of its own wherever it
// has namespaces, and there is no command that gives it those.
func (c *checker) kvmAccess() string {
	if c.uid == 0 {
		return ""
	}
	fi, err := os.Stat(filepath.Join(c.root, "dev/kvm"))
	if err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); fi.Mode().Perm()&0o060 == 0o060 && ok && st.Gid != 0 {
			return `sudo usermod -aG kvm "$(id -un)" # then log in again`
		}
	}
	return `sudo setfacl -m "u:$(id -un):rw" /dev/kvm`
}

// config reads the host's configuration, without which nothing starts when it is wrong.
func (c *checker) config(context.Context) []Finding {
	path := c.home.Path(config.File)
	if _, err := config.Load(c.home.Root); err != nil {
		return one("config", StatusFail, strings.Join(strings.Fields(err.Error()), " "), "${EDITOR:-vi} "+quote(path))
	}
	if _, err := os.Lstat(path); err != nil {
		return one("config", StatusOK, "no config.toml: the defaults", "")
	}
	return one("config", StatusOK, path, "")
}

func (c *checker) disk(context.Context) []Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(c.home.Root, &st); err != nil {
		return one("disk", StatusFail, c.home.Root+": "+err.Error(), "")
	}
	free := turnstone.Bytes(int64(st.Bavail) * int64(st.Bsize))
	detail := fmt.Sprintf("%s free in %s", free.Human(), c.home.Root)
	if cfg, err := config.Load(c.home.Root); err == nil { // else there is another finding
		floor := turnstone.Bytes(min(cfg.Limits.FreeSpace.Floor(st.Blocks*uint64(st.Bsize)), math.MaxInt64))
		if free < floor {
			return one("disk", StatusFail, fmt.Sprintf("%s, and free_space of config.toml has %s stay free: nothing starts", detail, floor.Human()), c.diskFix(0))
		}
	}
	return one("disk", grade(free, diskNeeded, diskWanted), detail, c.diskFix(free))
}

func (c *checker) diskFix(free turnstone.Bytes) string {
	if free >= diskWanted {
		return ""
	}
	return "rm -rf " + quote(c.home.Path("snapshots")) + " # they are taken again when needed; or set TURN_HOME to a larger disk"
}

func (c *checker) memory(context.Context) []Finding {
	available, err := memAvailable(filepath.Join(c.root, "proc/meminfo"))
	if err != nil {
		return one("memory", StatusWarn, err.Error(), "")
	}
	return one("memory", grade(available, memoryNeeded, memoryWanted),
		available.Human()+" available", "")
}

// grade compares what there is with what there must and should be.
func grade(have, needed, wanted turnstone.Bytes) Status {
	switch {
	case have < needed:
		return StatusFail
	case have < wanted:
		return StatusWarn
	}
	return StatusOK
}

// memAvailable reads MemAvailable (proc(5)), which counts in KiB.
func memAvailable(path string) (turnstone.Bytes, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for in := bufio.NewScanner(f); in.Scan(); {
		fields := strings.Fields(in.Text())
		if len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			return turnstone.Bytes(kib << 10), nil
		}
	}
	return 0, fmt.Errorf("%s: no MemAvailable", path)
}

// quote makes s one word of a shell command.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
