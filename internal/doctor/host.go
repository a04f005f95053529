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
	"turnstone.dev/turnstone/internal/brief"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/driver/kvm"
)

// Required and recommended resources: approximately those of a turn of the default shape and of a
// template build.
const (
	diskNeeded   turnstone.Bytes = 1 << 30
	diskWanted   turnstone.Bytes = 5 << 30
	memoryNeeded turnstone.Bytes = 512 << 20
	memoryWanted turnstone.Bytes = 2 << 30
)

func (c *checker) platform(context.Context) []Finding {
	what := runtime.GOOS + "/" + runtime.GOARCH
	if what != "linux/amd64" {
		return findingOf("platform", StatusFail, what+": turns run only on linux/amd64", "")
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		what += ", kernel " + unix.ByteSliceToString(u.Release[:])
	}
	return findingOf("platform", StatusOK, fmt.Sprintf("%s, %d CPUs", what, runtime.NumCPU()), "")
}

// kvm reports QEMU's result for KVM: works, works only with this kernel, or fails. Without KVM
// turns run under gVisor, or many times slower.
func (c *checker) kvm(s scene) []Finding {
	v, slow := s.qemu.kvm, s.withoutKVM()
	say := func(status Status, detail, fix string) []Finding {
		if modules := kvm.Modules(c.root); len(modules) > 0 {
			detail = strings.Join(modules, ", ") + ": " + detail
		}
		return findingOf("kvm", status, detail, fix)
	}
	// from a kernel other than that of the guests
	if s.guestErr != nil && (v.Proven || v.Usable || !v.Known) {
		return say(StatusWarn,
			"not checked: the guest kernel that has to start under it is not available"+slow, "")
	}
	if v.Usable && v.Emulated {
		return say(StatusOK, "a guest runs under it only with this kernel ("+c.kernelName()+
			"), not with Debian's: "+kvm.ErrEmulated.Error()+ofCPU(v), "")
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
		return say(StatusWarn, "users that run QEMU may not open /dev/kvm: "+v.Reason+slow,
			c.kvmAccess())
	}
	f, err := os.OpenFile(filepath.Join(c.root, "dev/kvm"), os.O_RDWR, 0)
	switch {
	case err == nil:
		_ = f.Close()
		if v.Known { // the device rejects access now
			return say(StatusWarn, "/dev/kvm cannot be used: "+v.Reason+slow, "")
		}
		if who, does := s.firstTurn(driver.QEMU, "KVM"); does {
			return say(StatusWarn, "not tried yet, "+who, tryTurn)
		} else {
			return say(StatusOK, "not tried yet, and "+who, "")
		}
	case errors.Is(err, fs.ErrPermission):
		return say(StatusWarn, "you may not open /dev/kvm"+slow, c.kvmAccess())
	case errors.Is(err, fs.ErrNotExist):
		return say(StatusWarn,
			"/dev/kvm is missing: virtualization is off in the firmware, or this is a virtual "+
				"machine"+slow, "")
	}
	return say(StatusWarn, err.Error()+slow, "")
}

// withoutKVM tells what turns run on when QEMU has no KVM; empty if that is unknown or they have
// KVM anyway.
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

// ofCPU returns the virtual CPU's model, and why it differs from the host's.
func ofCPU(v kvm.Verdict) string {
	switch {
	case v.CPU == "":
		return ""
	case v.Why == "":
		return "; CPU model " + v.CPU
	}
	return fmt.Sprintf("; CPU model %s because QEMU rejects the host's: %s", v.CPU, v.Why)
}

// noKVM reports that KVM is missing, or is ruled out without a guest.
func (c *checker) noKVM() bool {
	if _, err := os.Stat(filepath.Join(c.root, "dev/kvm")); err != nil {
		return true
	}
	return c.root == "/" && !c.guest.Own && errors.Is(kvm.Try(kvm.Device), kvm.ErrEmulated)
}

// kvmAccess returns the command that lets this user open the device: joining its group, if the
// group may open it. It grants access to no other user. Root's QEMU has its own device wherever
// namespaces exist, and no command grants access to that device.
func (c *checker) kvmAccess() string {
	if c.uid == 0 {
		return ""
	}
	fi, err := os.Stat(filepath.Join(c.root, "dev/kvm"))
	if err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); fi.Mode().Perm()&0o060 == 0o060 && ok &&
			st.Gid != 0 {
			return `sudo usermod -aG kvm "$(id -un)" # then log in again`
		}
	}
	return `sudo setfacl -m "u:$(id -un):rw" /dev/kvm`
}

// config checks the host's configuration: an invalid file prevents every turn.
func (c *checker) config(context.Context) []Finding {
	path := c.home.Path(config.File)
	if _, err := config.Load(c.home.Root); err != nil {
		return findingOf("config", StatusFail, brief.Line(err.Error()), "${EDITOR:-vi} "+quote(path))
	}
	if _, err := os.Lstat(path); err != nil {
		return findingOf("config", StatusOK, "no config.toml: the defaults", "")
	}
	return findingOf("config", StatusOK, path, "")
}

func (c *checker) disk(context.Context) []Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(c.home.Root, &st); err != nil {
		return findingOf("disk", StatusFail, c.home.Root+": "+err.Error(), "")
	}
	free := turnstone.Bytes(int64(st.Bavail) * int64(st.Bsize))
	detail := fmt.Sprintf("%s free in %s", free.Human(), c.home.Root)
	// otherwise another finding reports the error
	if cfg, err := config.Load(c.home.Root); err == nil {
		floor := turnstone.Bytes(min(cfg.Limits.FreeSpace.Floor(st.Blocks*uint64(st.Bsize)),
			math.MaxInt64))
		if free < floor {
			return findingOf("disk", StatusFail,
				fmt.Sprintf("%s, and free_space of config.toml keeps %s free: nothing starts",
					detail, floor.Human()), c.diskFix(0))
		}
	}
	return findingOf("disk", grade(free, diskNeeded, diskWanted), detail, c.diskFix(free))
}

func (c *checker) diskFix(free turnstone.Bytes) string {
	if free >= diskWanted {
		return ""
	}
	return "rm -rf " + quote(c.home.Path("snapshots")) +
		" # snapshots are taken again when needed; or set TURN_HOME to a larger disk"
}

func (c *checker) memory(context.Context) []Finding {
	available, err := memAvailable(filepath.Join(c.root, "proc/meminfo"))
	if err != nil {
		return findingOf("memory", StatusWarn, err.Error(), "")
	}
	return findingOf("memory", grade(available, memoryNeeded, memoryWanted),
		available.Human()+" available", "")
}

// grade compares the available amount with the required and recommended amounts.
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

// quote quotes s as a word of a shell command.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
