package agent

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/wire"
)

// kernelDirs move from the initramfs into the sandbox's root.
var kernelDirs = []string{"/proc", "/sys", "/dev", "/run"}

// A machine is the guest as a whole.
type machine struct{ groups *cgroups }

// configure is Sandbox.configure: it turns a clone into a sandbox of its own.
// The order matters: no random number is drawn before the reseed, and no file
// gets a time before the clock is right.
func (m *machine) configure(p wire.ConfigureParams) (wire.ConfigureResult, error) {
	var res wire.ConfigureResult
	if err := checkConfigure(p); err != nil {
		return res, err
	}
	if err := reseed(p.Entropy); err != nil {
		return res, failed("the kernel's random numbers", err)
	}
	res.Reseeded = true
	ts := unix.NsecToTimespec(p.Time.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return res, failed("the clock", err)
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return res, failed("the host name", err)
	}
	if err := m.groups.limit(p.MemoryMax, p.PidsMax); err != nil {
		return res, failed("the limits", err)
	}
	if err := mountScratch(p); err != nil {
		return res, err
	}
	if err := enterRoot(); err != nil {
		return res, failed("the root file system", err)
	}
	res.BootID = newBootID()
	if p.Network != nil {
		if err := networkUp(p.Network); err != nil {
			return res, err
		}
	}
	return res, nil
}

func failed(subject string, err error) error {
	return &turnstone.Error{Op: "sandbox.configure", Kind: turnstone.Unavailable, Subject: subject, Err: err,
		Hint: "the sandbox could not be set up; see its console, and report this"}
}

func checkConfigure(p wire.ConfigureParams) error {
	const op = "sandbox.configure"
	_, err := hex.DecodeString(p.MachineID)
	switch {
	case len(p.Entropy) < 32 || len(p.Entropy) > 512:
		return invalid(op, "entropy", "between 32 and 512 bytes are needed")
	case p.Time.Unix() < 1_000_000_000:
		return invalid(op, "time", "the host's clock is before 2001")
	case p.Hostname == "" || len(p.Hostname) > 64 || strings.ContainsAny(p.Hostname, " \t\n/"):
		return invalid(op, "hostname", "malformed")
	case err != nil || len(p.MachineID) != 32 || strings.ToLower(p.MachineID) != p.MachineID:
		return invalid(op, "machineId", "32 lower-case hex digits are needed")
	case p.Scratch == "":
		return invalid(op, "scratch", "a disk's serial number is needed")
	}
	return nil
}

// reseed mixes entropy into the kernel's generator and makes it draw new keys
// from the pool, for every CPU (random(4), RNDADDENTROPY and RNDRESEEDCRNG). The
// kernel answers the second only when the generator is seeded.
func reseed(entropy []byte) error {
	fd, err := unix.Open("/dev/random", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	// struct rand_pool_info: entropy count in bits, size in bytes, then the bytes.
	info := make([]byte, 8, 8+len(entropy))
	binary.NativeEndian.PutUint32(info[0:], uint32(len(entropy)*8))
	binary.NativeEndian.PutUint32(info[4:], uint32(len(entropy)))
	info = append(info, entropy...)
	if err := ioctl(fd, unix.RNDADDENTROPY, unsafe.Pointer(&info[0])); err != nil {
		return err
	}
	runtime.KeepAlive(info)
	return ioctl(fd, rndReseedCRNG, nil)
}

// rndReseedCRNG is RNDRESEEDCRNG of linux/random.h.
const rndReseedCRNG = 0x5207

func ioctl(fd int, req uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// mountScratch mounts the disk for the writes, puts the sandbox's identity on it
// and mounts the two together. The identity is written below the overlay, which
// would else first copy up what the template has.
func mountScratch(p wire.ConfigureParams) error {
	dev, err := blockDevice(p.Scratch, deviceWait)
	if err != nil {
		return failed("the scratch disk", err)
	}
	// The disk lives as long as the machine: barriers protect nothing.
	const opts = "nobarrier,noinit_itable"
	if err := unix.Mount(dev, upperDir, "ext4", unix.MS_NOATIME, opts); err != nil {
		return failed("the scratch disk", err)
	}
	upper, work := filepath.Join(upperDir, "upper"), filepath.Join(upperDir, "work")
	etc := filepath.Join(upper, "etc")
	for _, dir := range []string{upper, work, etc} {
		if err := unix.Mkdir(dir, 0o755); err != nil && err != unix.EEXIST {
			return failed("the scratch disk", err)
		}
	}
	for _, f := range [...][2]string{
		{"hostname", p.Hostname + "\n"},
		{"hosts", "127.0.0.1\tlocalhost\n127.0.1.1\t" + p.Hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
		{"machine-id", p.MachineID + "\n"},
		{"resolv.conf", resolvConf(p.Network)},
	} {
		if err := os.WriteFile(filepath.Join(etc, f[0]), []byte(f[1]), 0o644); err != nil {
			return failed("the scratch disk", err)
		}
	}
	if err := mountOverlay(mergedDir, upper, work); err != nil {
		return failed("the root file system", err)
	}
	return nil
}

func mountOverlay(dir, upper, work string) error {
	opts := "lowerdir=" + lowerDir + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", dir, "overlay", unix.MS_NOATIME, opts); err != nil {
		return &os.PathError{Op: "mount", Path: dir, Err: err}
	}
	return nil
}

// enterRoot makes the overlay the root of the agent and of all it starts, as
// switch_root does.
func enterRoot() error {
	for _, dir := range kernelDirs {
		dst := mergedDir + dir
		if err := unix.Mount(dir, dst, "", unix.MS_MOVE, ""); err != nil {
			if err = os.MkdirAll(dst, 0o755); err == nil {
				err = unix.Mount(dir, dst, "", unix.MS_MOVE, "")
			}
			if err != nil {
				return &os.PathError{Op: "move", Path: dir, Err: err}
			}
		}
	}
	if err := unix.Chdir(mergedDir); err != nil {
		return err
	}
	return errors.Join(
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		unix.Chdir("/"),
	)
}

// newBootID gives the guest a boot ID of its own and returns it. The kernel's
// cannot be written, so another file is put over it; "" when that fails.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	id := h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	const file, over = "/run/turn/boot_id", "/proc/sys/kernel/random/boot_id"
	if os.WriteFile(file, []byte(id+"\n"), 0o444) != nil || unix.Mount(file, over, "", unix.MS_BIND, "") != nil {
		return ""
	}
	return id
}
