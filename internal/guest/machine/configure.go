package machine

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/guest/agent"
	"turnstone.dev/turnstone/internal/guest/files"
	"turnstone.dev/turnstone/internal/guest/process"
	"turnstone.dev/turnstone/wire"
)

// kernelDirs move from the initramfs into the sandbox's root.
var kernelDirs = []string{"/proc", "/sys", "/dev", "/run"}

// A machine is the guest as a whole.
type machine struct {
	gvisor  bool // a container of gVisor: the host has mounted its disks
	kernel  kernelWord
	reap    process.Reaper
	space   *process.Space
	groups  *process.Groups
	mounted string               // serial number of the mounted scratch disk
	network *wire.SandboxNetwork // the network's current configuration
	// descriptor of the root that the kernel started with; -1: not left yet
	base int
	// names of disks without a serial number, by device; nil: all have one
	names   map[string]string
	devices map[string]uint64 // numbers of the block devices by serial number
	strict  *strict           // nil: the machine is not deterministic
	disks   agent.Disks
	card    card
}

// prepare does the work that is common to all clones, before the snapshot.
func (m *machine) prepare(p params) error {
	if p.network != nil {
		if err := networkUp(p.network); err != nil {
			return err
		}
		m.network = p.network
	}
	if p.scratch == "" {
		return nil
	}
	if err := m.mountScratch(p.scratch); err != nil {
		return err
	}
	// The placeholder is as long as the final value, so that only a rewrite remains.
	id := identity{hostname: "sb-0000000000000000000", machineID: strings.Repeat("0", 32),
		network: m.network}
	for _, upper := range []string{firstUpper, secondUpper} {
		if err := id.write(filepath.Join(upperDir, upper)); err != nil {
			return err
		}
		if err := resemble(filepath.Join(upperDir, upper), []string{lowerDir}); err != nil {
			return err
		}
	}
	m.mounted = p.scratch
	return m.enterRoot()
}

// configure implements Sandbox.configure: it gives a clone its own identity. The order matters: no
// random number is drawn before the reseed, and no file gets a time before the clock is right.
func (m *machine) configure(p *wire.SandboxConfigureParams) (*wire.SandboxConfigureResult, error) {
	res := new(wire.SandboxConfigureResult)
	now, err := checkConfigure(p)
	if err == nil && m.gvisor && p.Home != nil {
		err = turnstone.Errorf(wire.MethodSandboxConfigure, turnstone.KindUnavailable, "home",
			"gVisor cannot mount a disk").
			WithHint("use a microVM for a turn with a home: --substrate qemu")
	}
	if err != nil {
		return res, err
	}
	if m.gvisor && p.Deterministic {
		if err := beginDeterministic(p.Entropy, now); err != nil {
			return res, agent.Failed("the deterministic kernel", err)
		}
	}
	if res.Reseeded, err = m.refresh(p.Entropy, now); err != nil {
		return res, err
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return res, agent.Failed("the host name", err)
	}
	if err := m.groups.Limit(p.MemoryMax, p.PIDsMax); err != nil {
		return res, agent.Failed("the limits", err)
	}
	if err := m.enter(p); err != nil {
		return res, agent.Failed("the root file system", err)
	}
	res.Upper = m.disks.Upper
	res.Kernel, res.KernelOpen, res.CPUs = m.kernel.release, m.kernel.open, int64(m.kernel.cpus)
	if res.BootID, err = bootIDOf(p); err != nil {
		return res, agent.Failed("the boot id", err)
	}
	if p.Network != nil && !sameNetwork(p.Network, m.network) {
		if err := networkUp(p.Network); err != nil {
			return res, err
		}
	}
	return res, nil
}

// enter gives the sandbox its root and its identity in that root.
func (m *machine) enter(p *wire.SandboxConfigureParams) error {
	id := identity{hostname: p.Hostname, machineID: p.MachineID, network: p.Network}
	switch {
	case m.mounted == "":
		if err := m.mountScratch(p.Scratch); err != nil {
			return err
		}
		// Written below the overlay, because the overlay would first copy up the template's file.
		if err := id.write(filepath.Join(upperDir, firstUpper)); err != nil {
			return err
		}
		if err := m.enterRoot(); err != nil {
			return err
		}
	case m.mounted != p.Scratch:
		return errors.New("another disk than " + p.Scratch + " is mounted already")
	case len(p.Layers) == 0:
		if err := id.write("/"); err != nil {
			return err
		}
	}
	if len(p.Layers) > 0 {
		if err := m.enterStack(p.Layers, id); err != nil {
			return err
		}
	}
	if p.Disk != "" {
		if err := m.showDisk(p.Disk); err != nil {
			return err
		}
	}
	if p.Home != nil {
		return m.mountHome(p.Home)
	}
	return nil
}

// checkConfigure returns the host's time.
func checkConfigure(p *wire.SandboxConfigureParams) (time.Time, error) {
	const op = wire.MethodSandboxConfigure
	_, err := hex.DecodeString(p.MachineID)
	now, timeErr := time.Parse(time.RFC3339Nano, p.Time)
	switch {
	case len(p.Entropy) < 32 || len(p.Entropy) > 512:
		return now, agent.Invalid(op, "entropy", "between 32 and 512 bytes are needed")
	case timeErr != nil:
		return now, agent.Invalid(op, "time", "it is not in the form of RFC 3339")
	case now.Unix() < 1_000_000_000 && !p.Deterministic:
		return now, agent.Invalid(op, "time", "the host's clock is before 2001")
	case p.Hostname == "" || len(p.Hostname) > 64 || strings.ContainsAny(p.Hostname, " \t\n/"):
		return now, agent.Invalid(op, "hostname", "malformed")
	case err != nil || len(p.MachineID) != 32 || strings.ToLower(p.MachineID) != p.MachineID:
		return now, agent.Invalid(op, "machineId", "32 lower-case hex digits are needed")
	case p.Scratch == "":
		return now, agent.Invalid(op, "scratch", "a disk's serial number is needed")
	case len(p.Layers) > maxLayers || slices.ContainsFunc(p.Layers, notSerial):
		return now, agent.Invalid(op, "layers",
			"there are too many, or one is not a disk's serial number")
	case p.Home != nil && (notSerial(p.Home.Serial) || !mountable(p.Home.Path)):
		return now, agent.Invalid(op, "home",
			"a disk's serial number and an absolute path other than / are needed")
	case p.Disk != "" && !mountable(p.Disk):
		return now, agent.Invalid(op, "disk", "an absolute path other than / is needed")
	}
	return now, nil
}

// notSerial reports whether s cannot be a disk's serial number: serial numbers become file names.
func notSerial(s string) bool { return s == "" || len(s) > 20 || strings.ContainsAny(s, "/.\x00") }

func mountable(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) != "/" && len(path) <= files.MaxPath &&
		strings.IndexByte(path, 0) < 0
}

// refresh gives a clone its own random numbers, and then the right time: no random number is drawn
// before, and no file gets a time before. gVisor gets both from its host on each request, so no two
// clones share them.
func (m *machine) refresh(entropy []byte, now time.Time) (reseeded bool, err error) {
	if m.gvisor {
		return true, nil
	}
	if err := reseed(entropy); err != nil {
		return false, agent.Failed("the kernel's random numbers", err)
	}
	ts := unix.NsecToTimespec(now.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return true, agent.Failed("the clock", err)
	}
	return true, nil
}

// reseed mixes entropy into the kernel's generator and makes it draw new keys from the pool, for
// every CPU (random(4), RNDADDENTROPY and RNDRESEEDCRNG). The kernel accepts the second request
// only if the generator is seeded.
func reseed(entropy []byte) error {
	fd, err := unix.Open("/dev/random", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
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
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req),
		uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// identity is the sandbox's identity in its own files.
type identity struct {
	hostname  string
	machineID string
	network   *wire.SandboxNetwork
}

// write writes the files below root.
func (id identity) write(root string) error {
	for _, f := range [...][2]string{
		{"etc/hostname", id.hostname + "\n"},
		{"etc/hosts", "127.0.0.1\tlocalhost\n127.0.1.1\t" + id.hostname +
			"\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
		{"etc/machine-id", id.machineID + "\n"},
		{"etc/resolv.conf", resolvConf(id.network)},
	} {
		if err := overwrite(filepath.Join(root, f[0]), f[1]); err != nil {
			return err
		}
	}
	return nil
}

// overwrite replaces a file's content. It truncates after the write and only if necessary: a file
// of the same length then needs a single write to the page cache.
func overwrite(path, text string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil && len(text) > 0 {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	if st.Size > int64(len(text)) {
		if err := unix.Ftruncate(fd, int64(len(text))); err != nil {
			return &os.PathError{Op: "truncate", Path: path, Err: err}
		}
	}
	return nil
}

// bootIDFile covers the kernel's boot_id, which is read-only and would be the same in every clone.
const bootIDFile = "/run/boot_id"

// bootIDOf creates the boot ID of a sandbox that is configured with p, and returns it.
func bootIDOf(p *wire.SandboxConfigureParams) (string, error) {
	if p.Deterministic {
		seed := sha256.Sum256(append([]byte("boot id\x00"), p.Entropy...))
		return writeBootID([16]byte(seed[:]))
	}
	return newBootID()
}

// newBootID creates the guest's own boot ID and returns it.
func newBootID() (string, error) {
	var b [16]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return "", err
	}
	return writeBootID(b)
}

func writeBootID(b [16]byte) (string, error) {
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	id := h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	return id, overwrite(bootIDFile, id+"\n")
}
