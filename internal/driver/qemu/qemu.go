// Package qemu is the substrate that runs sandboxes as virtual machines of QEMU: with KVM if a
// guest really starts under it, otherwise with QEMU's own translator (TCG). A sandbox starts from a
// memory snapshot of its booted agent, mapped copy-on-write, so that clones share unchanged memory.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/lazyregexp"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

// Substrate starts QEMU machines. It is safe for concurrent use.
type Substrate struct {
	home     *statedir.Dir
	binary   string
	version  string
	digest   turnstone.Digest // of the program
	accel    accel
	cpu      string // see engine
	wall     Jail
	hostCPU  turnstone.Digest
	verdict  kvm.Verdict
	fallback error // see Options
	kernel   substrate.GuestKernel
	progress func(string)
	more     []string // boot arguments of benchmarks and kernel checks
	// look is called with a deterministic machine that stands still after its script, for tests
	look func(memory, scratch *os.File) error
}

// Options are the parameters of New.
type Options struct {
	Binary   string       // QEMU's system emulator; empty: found in PATH
	Progress func(string) // called before slow operations; may be nil
	// Probe is a small machine to prove KVM if there is no verdict yet. Nil: an unproven KVM is
	// unusable.
	Probe  *substrate.Machine
	Kernel substrate.GuestKernel // kernel that guests boot; Probe's if it is set
	// Fallback is why guests do not run under KVM, if that is worth reporting: if a guest does not
	// start without KVM either, the error has both reasons. Nil: only its own reason.
	Fallback error
	// Translate makes guests run under TCG, also where KVM works.
	Translate bool
}

const binaryName = "qemu-system-x86_64"

// New finds QEMU and decides how guests run. The verdict on KVM is determined once and remembered
// in h.
func New(ctx context.Context, h *statedir.Dir, opts Options) (*Substrate, error) {
	s := &Substrate{home: h, binary: opts.Binary, progress: opts.Progress, accel: accelTCG,
		kernel: opts.Kernel, fallback: opts.Fallback}
	if opts.Probe != nil {
		s.kernel = opts.Probe.GuestKernel()
	}
	if s.progress == nil {
		s.progress = func(string) {}
	}
	if runtime.GOARCH != "amd64" {
		return nil, turnstone.Errorf("qemu.new", turnstone.KindUnavailable, runtime.GOARCH,
			"the qemu substrate runs on x86-64 hosts only")
	}
	if s.binary == "" {
		path, err := host.FindSystem(binaryName)
		if err != nil {
			return nil, turnstone.NewError("qemu.new", turnstone.KindUnavailable, binaryName, err).
				WithHint("install QEMU: sudo apt-get install --no-install-recommends qemu-system-x86")
		}
		s.binary = path
	}
	if path, err := filepath.EvalSymlinks(s.binary); err == nil {
		s.binary = path
	}
	var err error
	if s.binary, err = filepath.Abs(s.binary); err != nil {
		return nil, turnstone.NewError("qemu.new", turnstone.KindUnavailable, s.binary, err)
	}
	if s.version, err = s.readVersion(ctx); err != nil {
		return nil, err
	}
	if s.hostCPU, err = host.CPU(); err != nil {
		return nil, err
	}
	if s.wall, err = s.findWall(ctx); err != nil {
		return nil, err
	}
	if s.verdict = s.KVM(ctx, opts.Probe); s.verdict.Usable && !opts.Translate {
		s.accel, s.cpu = accelKVM, s.verdict.CPU
	}
	return s, nil
}

// Name implements substrate.Substrate.
func (s *Substrate) Name() string { return "qemu" }

// Version returns QEMU's version text.
func (s *Substrate) Version() string { return s.version }

// ProgramDigest returns the digest of the program that runs machines.
func (s *Substrate) ProgramDigest() turnstone.Digest { return s.digest }

// Isolation implements substrate.Substrate.
func (s *Substrate) Isolation() string {
	how := "microvm (" + strings.ToUpper(string(s.accel)) + s.kernel.Isolation() + ")"
	if !s.wall.Namespaces() {
		how += ", no namespaces"
	}
	return how
}

func (s *Substrate) engine() engine { return engine{accel: s.accel, cpu: s.cpu} }

// Accelerated reports whether guests run under KVM.
func (s *Substrate) Accelerated() bool { return s.accel == accelKVM }

// Verdict returns New's verdict on KVM.
func (s *Substrate) Verdict() kvm.Verdict { return s.verdict }

// Boot implements substrate.Substrate.
func (s *Substrate) Boot(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	if m.Determinism != nil {
		return s.bootStrict(ctx, m)
	}
	if err := s.hasCard(m.Shape); err != nil {
		return nil, err
	}
	vm, err := s.bootFresh(ctx, m)
	if err != nil {
		return nil, err
	}
	err = vm.wait(ctx, s.accel.patience())
	if err == nil {
		_, err = vm.mon.do(ctx, negotiate)
	}
	if err == nil {
		err = vm.seal(ctx)
	}
	if err != nil {
		_ = vm.Close()
		return nil, s.wrap(s.notStarted(err))
	}
	return vm, nil
}

// notStarted prepends why KVM is not used to the error of a guest that does not start without KVM.
func (s *Substrate) notStarted(err error) error {
	var e *turnstone.Error
	if s.fallback == nil || s.accel == accelKVM || !errors.As(err, &e) ||
		e.Kind != turnstone.KindDead {
		return err
	}
	both := *e
	both.Subject, both.Err = "", fmt.Errorf("%w; and without it, under TCG: %w", s.fallback, e.Err)
	return &both
}

// bootFresh starts m from its kernel with new memory and a new disk.
func (s *Substrate) bootFresh(ctx context.Context, m substrate.Machine) (*machine, error) {
	ram, err := memory("ram")
	if err != nil {
		return nil, err
	}
	defer ram.Close()
	dir, err := s.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, s.wrap(err)
	}
	scratch, err := statedir.Unnamed(dir)
	if err != nil {
		return nil, s.wrap(err)
	}
	defer scratch.Close()
	if err := s.blankScratch(ctx, scratch, m.Shape.Disk); err != nil {
		return nil, s.wrap(err)
	}
	return s.boot(m, ram, scratch)
}

// Restore implements substrate.Substrate.
func (s *Substrate) Restore(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	if m.Determinism != nil {
		return s.bootStrict(ctx, m)
	}
	if err := s.hasCard(m.Shape); err != nil {
		return nil, err
	}
	snap, err := s.ensureSnapshot(ctx, m, s.identity(m))
	if err != nil {
		return nil, s.wrap(err)
	}
	f, err := s.restoreFiles(ctx, m, snap)
	if err != nil {
		return nil, s.wrap(err)
	}
	return s.launch(ctx, m, f, snap.state, nil)
}

// launch starts a machine that maps its memory privately, and loads its devices' state. It takes
// ownership of f's files.
func (s *Substrate) launch(ctx context.Context, m substrate.Machine, f files, state []byte,
	more []string) (*machine, error) {
	l, err := s.keep(f, m, false)
	if err != nil {
		f.close()
		return nil, s.wrap(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		f.close()
		l.close()
		return nil, s.wrap(err)
	}
	defer r.Close()
	args := arguments(s.engineOf(m), m.Shape, true, disks{len(m.Layers), m.Home != ""})
	vm, err := s.start(m.Shape, append(args, more...), f)
	if err != nil {
		_ = w.Close()
		l.close()
		return nil, s.wrap(err)
	}
	vm.live = l
	go func() { // ends with the state or with QEMU
		_, _ = w.Write(state)
		_ = w.Close()
	}()
	// The device state may come from a hostile guest.
	if _, err = vm.mon.do(ctx, negotiate); err == nil {
		err = vm.seal(ctx)
	}
	if err == nil {
		_, err = vm.mon.do(ctx, passState(r), ignoreShared,
			command{Execute: "migrate-incoming", Arguments: stateURI})
	}
	if err != nil {
		return nil, s.failed(vm, err)
	}
	return vm, nil
}

// failed closes vm and returns vm's own reason for its end if it has a reason, and err otherwise.
func (s *Substrate) failed(vm *machine, err error) error {
	err = vm.Why(err)
	_ = vm.Close()
	return s.wrap(err)
}

func (s *Substrate) wrap(err error) error {
	hint := "run `turn doctor`"
	if errors.Is(err, console.ErrLate) { // the kernel may be to blame
		hint = s.kernel.Advice()
	}
	return kit.Fault("qemu.restore", "qemu", s.home.Root, err, hint)
}

// boot starts m from its kernel with ram as its memory and scratch as its disk; both still belong
// to the caller.
func (s *Substrate) boot(m substrate.Machine, ram, scratch *os.File) (*machine, error) {
	var f files
	var err error
	if err = prepareMemory(ram, int64(m.Shape.Memory)); err == nil {
		f.ram, err = kit.Dup(ram)
	}
	if err == nil {
		f.kernel, err = os.Open(m.Kernel)
	}
	if err == nil {
		f.initramfs, err = os.Open(m.Initramfs)
	}
	if err == nil {
		f.root, err = os.Open(m.Root)
	}
	if err == nil {
		f.scratch, err = kit.Dup(scratch)
	}
	if err != nil {
		f.close()
		return nil, s.wrap(err)
	}
	l, err := s.keep(f, m, true)
	if err != nil {
		f.close()
		return nil, s.wrap(err)
	}
	vm, err := s.start(m.Shape, append(arguments(s.engineOf(m), m.Shape, false, disks{}), s.more...),
		f)
	if err != nil {
		l.close()
		return nil, s.wrap(err)
	}
	vm.live = l
	return vm, nil
}

// prepareMemory sets the file's size and, if QEMU runs as another user, its owner.
func prepareMemory(ram *os.File, size int64) error {
	if err := ram.Truncate(size); err != nil {
		return err
	}
	if c := unprivileged(); c != nil {
		return ram.Chown(int(c.Uid), int(c.Gid))
	}
	return nil
}

func (s *Substrate) restoreFiles(ctx context.Context, m substrate.Machine,
	snap *snapshot) (f files, err error) {
	f.ram = snap.ram
	if f.kernel, err = s.stub(); err == nil {
		f.root, err = os.Open(m.Root)
	}
	if err == nil {
		f.scratch, err = s.scratch(ctx, snap)
	}
	if err == nil {
		err = f.fill(m)
	}
	if err != nil {
		f.close()
	}
	return f, err
}

// scratch returns a clone's own copy of snap's scratch disk.
func (s *Substrate) scratch(ctx context.Context, snap *snapshot) (*os.File, error) {
	dir, err := s.home.MkdirAll("sandboxes")
	if err != nil {
		return nil, err
	}
	return newScratch(ctx, snap.scratch, dir)
}

// diskOp names the creation of disks in errors.
const diskOp = "qemu.disk"

// blankScratch makes f an empty file system of the given size.
func (s *Substrate) blankScratch(ctx context.Context, f *os.File, size turnstone.Bytes) error {
	blank, err := disk.Blank(ctx, diskOp, s.home, size)
	if err != nil {
		return err
	}
	src, err := os.Open(blank)
	if err != nil {
		return err
	}
	defer src.Close()
	return disk.CopySparse(ctx, f, src)
}

// stub returns the stub kernel as a memory file, which every user may read.
func (s *Substrate) stub() (*os.File, error) {
	f, err := memory("stub")
	if err != nil {
		return nil, err
	}
	if err = f.Chmod(0o444); err == nil {
		_, err = f.Write(stubKernel())
	}
	return f, err
}

// memory returns an empty file in memory.
func memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("turnstone-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (s *Substrate) identity(m substrate.Machine) identity {
	e := s.engineOf(m)
	args := strings.Join(arguments(e, m.Shape, false, disks{}), "\x00")
	return identity{
		Format: snapshotFormat, QEMU: s.version, Accel: s.accel, CPUModel: e.model(),
		HostCPU:   s.hostCPU,
		Arguments: turnstone.DigestBytes([]byte(args)), Kernel: m.KernelDigest,
		OwnKernel: m.KernelIs.Own, Firmware: e.bios, Init: m.InitDigest, Root: m.RootDigest, Shape: m.Shape,
	}
}

func (s *Substrate) readVersion(ctx context.Context) (string, error) {
	p, err := host.Versioned(ctx, s.home, "qemu-version.json", s.binary)
	if err != nil {
		return "", turnstone.NewError("qemu.new", turnstone.KindUnavailable, s.binary, err).
			WithHint("run `turn doctor`")
	}
	s.digest = p.Binary.Digest
	return p.Version, nil
}

var versionNumber = lazyregexp.New(`version (\d+)\.(\d+)`)

// hasCard returns an error if this QEMU lacks the network card that a shape needs: -netdev stream
// exists since QEMU 7.2. A QEMU with an unreadable version is tried.
func (s *Substrate) hasCard(shape turnstone.Shape) error {
	v := versionNumber.FindStringSubmatch(s.version)
	if !shape.Network || v == nil {
		return nil
	}
	major, _ := strconv.Atoi(v[1])
	minor, _ := strconv.Atoi(v[2])
	if major > 7 || major == 7 && minor >= 2 {
		return nil
	}
	return turnstone.Errorf("qemu.network", turnstone.KindUnavailable, s.version,
		"has no network card that ends in this process (-netdev stream, since QEMU 7.2)").
		WithHint("install QEMU 7.2 or newer, or run with network: off")
}
