// Package firecracker is the substrate that runs sandboxes as microVMs of Firecracker
// (https://firecracker-microvm.github.io), under KVM. It uses Firecracker's HTTP API on a unix
// socket. A sandbox starts from a snapshot of its booted agent, whose memory is mapped
// copy-on-write.
//
// Firecracker runs in a jail: Firecracker's jailer creates root's jail, as nobody, in a folder, a
// mount namespace and a PID namespace of its own; without a jailer, and for ordinary users, package
// jail creates it. Ordinary users have no jail on hosts that forbid them user namespaces.
// Firecracker's own seccomp filters are always on.
package firecracker

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/driver/console"
	"turnstone.dev/turnstone/internal/driver/disk"
	"turnstone.dev/turnstone/internal/driver/host"
	"turnstone.dev/turnstone/internal/driver/kit"
	"turnstone.dev/turnstone/internal/driver/kvm"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
)

var (
	_ substrate.Substrate   = (*Substrate)(nil)
	_ substrate.BasePacker  = (*Substrate)(nil)
	_ substrate.Able        = (*Substrate)(nil)
	_ substrate.Sandbox     = (*machine)(nil)
	_ substrate.Pauser      = (*machine)(nil)
	_ substrate.Disker      = (*machine)(nil)
	_ substrate.Snapshotter = (*machine)(nil)
)

// Substrate starts Firecracker's machines. It is safe for concurrent use, also from several
// processes with one state directory.
type Substrate struct {
	home     *statedir.Dir
	binary   string
	jailer   string // empty: no jailer, or not root
	wall     Jail
	version  string
	digest   turnstone.Digest // of the program
	release  release
	hostCPU  turnstone.Digest
	kernel   string // release of the host's kernel
	guest    substrate.GuestKernel
	limits   limits
	progress func(string)
	mayOpen  func() error
	tryKVM   func() error
	// the file system of the machines' folders records which parts of a file were written
	holes func() bool
}

// Options are the parameters of New.
type Options struct {
	Binary   string       // empty: "firecracker" in PATH
	Jailer   string       // for root only; empty: beside Binary, then PATH
	Progress func(string) // called before slow operations; may be nil
	// Probe is a small machine to prove KVM if there is no verdict yet.
	Probe *substrate.Machine
	// the caller asks again, with a Probe: a remembered kernel fault, which applies to its modules,
	// is not final
	Again  bool
	Kernel substrate.GuestKernel // kernel that guests boot; Probe's if it is set
	// DiskBandwidth and DiskOps limit the guest's use of each disk that it writes, in bytes and
	// operations per second; 0: no limit.
	DiskBandwidth turnstone.Bytes
	DiskOps       int64
}

// ErrUnproven is in the chain of New's error if it is unknown whether a guest starts here, and
// Options.Probe is nil.
var ErrUnproven = errors.New("no guest was started under KVM yet")

// How to install what is missing. The releases have checksums beside them.
const (
	releases = "https://github.com/firecracker-microvm/firecracker/releases"
	getHint  = "download the release for x86_64 from " + releases +
		", check it against its .sha256.txt, and put firecracker into PATH, or set TURN_FIRECRACKER"
)

// New finds Firecracker and makes sure that a guest runs under it. That is tried once, with
// opts.Probe, and remembered in h. Errors are of kind Unavailable, with a hint.
func New(ctx context.Context, h *statedir.Dir, opts Options) (*Substrate, error) {
	s, err := open(ctx, h, opts)
	if err != nil {
		return nil, err
	}
	switch v := s.KVM(ctx, opts.Probe); {
	case v.Usable:
		return s, nil
	case ctx.Err() != nil:
		return nil, turnstone.NewError("firecracker.new", turnstone.KindCanceled, "firecracker",
			ctx.Err())
	default:
		return nil, s.unusable(v, opts)
	}
}

// unusable returns New's error for the verdict v.
func (s *Substrate) unusable(v kvm.Verdict, opts Options) error {
	e := turnstone.NewError("firecracker.new", turnstone.KindUnavailable, "firecracker", nil)
	// otherwise a kernel's fault is reported
	if !v.Known && opts.Probe == nil && (opts.Again || !v.Kernel) {
		e.Err, e.Hint = ErrUnproven, "run a turn with --substrate firecracker, which tries KVM"
	} else {
		e.Err, e.Hint = v.Unavailable(e.Op, s.guest.KernelKind), v.Advice(s.guest.KernelKind)
	}
	return e
}

// Find returns the path and the version of the Firecracker that New would use, whether or not KVM
// works. It only asks the program for its version.
func Find(ctx context.Context, h *statedir.Dir, opts Options) (path, version string, err error) {
	s, err := open(ctx, h, opts)
	if err != nil {
		return "", "", err
	}
	return s.binary, s.version, nil
}

// open finds the programs.
func open(ctx context.Context, h *statedir.Dir, opts Options) (*Substrate, error) {
	s := &Substrate{home: h, progress: opts.Progress, limits: limits{opts.DiskBandwidth,
		opts.DiskOps}, mayOpen: mayOpenKVM, tryKVM: tryKVM, guest: opts.Kernel}
	if opts.Probe != nil {
		s.guest = opts.Probe.GuestKernel()
	}
	s.holes = sync.OnceValue(s.keepsHoles)
	if s.progress == nil {
		s.progress = func(string) {}
	}
	unavailable := func(subject string, err error, hint string) (*Substrate, error) {
		return nil, turnstone.NewError("firecracker.new", turnstone.KindUnavailable, subject, err).
			WithHint(hint)
	}
	if runtime.GOARCH != "amd64" {
		return unavailable(runtime.GOARCH,
			errors.New("the firecracker substrate runs on x86-64 hosts only"), "")
	}
	var err error
	if s.binary, err = find(opts.Binary, "firecracker", ""); err != nil {
		return unavailable("firecracker", err, getHint)
	}
	if s.version, err = s.readVersion(ctx); err != nil {
		return unavailable(s.binary, err, getHint)
	}
	if s.release, err = parseRelease(s.version); err != nil {
		return unavailable(s.binary, err, getHint)
	}
	if !s.release.atLeast(minMajor, minMinor) {
		return unavailable(s.binary,
			fmt.Errorf("it is %s, and %d.%d is the oldest that is supported", s.version, minMajor,
				minMinor), getHint)
	}
	if s.hostCPU, err = host.CPU(); err != nil {
		return nil, err
	}
	s.kernel = host.Kernel()
	sweepCells(h)
	if err := s.confine(ctx, opts); err != nil {
		return nil, err
	}
	if s.jailer != "" {
		if _, parent := cgroupLimits(1, "/sys/fs/cgroup"); parent != "" {
			sweepGroups(parent, time.Now())
		}
	}
	return s, nil
}

// confine decides how Firecracker is confined.
func (s *Substrate) confine(ctx context.Context, opts Options) (err error) {
	if os.Geteuid() != 0 {
		s.wall, err = s.findWall(ctx)
		return err
	}
	unavailable := func(subject string, err error) error {
		var typed *JailerError
		if !errors.As(err, &typed) {
			err = &JailerError{Binary: s.binary, Release: s.releaseText(), Err: err}
		}
		return turnstone.NewError("firecracker.new", turnstone.KindUnavailable, subject, err).
			WithHint("put the jailer of Firecracker's release beside firecracker, or set " +
				"TURN_JAILER to it")
	}
	s.jailer, err = find(opts.Jailer, "jailer", filepath.Dir(s.binary))
	switch {
	case err == nil:
		s.wall = Jail{Wall: byJailer}
		if err := s.checkJailer(ctx); err != nil {
			return unavailable(s.jailer, err)
		}
		return nil
	case opts.Jailer != "":
		return unavailable(opts.Jailer, notFound(err))
	}
	if s.wall, err = s.findWall(ctx); err == nil && !s.wall.Confined() {
		err = unavailable("jailer",
			fmt.Errorf("root's Firecracker is jailed, there is no jailer, and no other jail can "+
				"be made: %s", s.wall.Reason))
	}
	return err
}

// notFound returns why a named program is not available, without its name.
func notFound(err error) error {
	var path *fs.PathError
	var named *exec.Error
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &named):
		return named.Err
	}
	return err
}

// find returns the path of a program: the given path, or the program beside another program, or in
// PATH.
func find(given, name, beside string) (string, error) {
	if given == "" && beside != "" {
		if path, err := exec.LookPath(filepath.Join(beside, name)); err == nil {
			given = path
		}
	}
	if given == "" {
		given = name
	}
	path, err := exec.LookPath(given)
	if err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// Name implements substrate.Substrate.
func (s *Substrate) Name() string { return "firecracker" }

// Isolation implements substrate.Substrate.
func (s *Substrate) Isolation() string {
	how := "microvm (KVM" + s.guest.Isolation()
	if s.wall.Confined() {
		return how + ", jailed)"
	}
	return how + ")"
}

// Version returns Firecracker's version text.
func (s *Substrate) Version() string { return s.version }

// ProgramDigest returns the digest of the program that runs machines.
func (s *Substrate) ProgramDigest() turnstone.Digest { return s.digest }

// Boot implements substrate.Substrate.
func (s *Substrate) Boot(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	vm, err := s.boot(ctx, m)
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	err = vm.wait(ctx, kvm.Patience())
	if err == nil {
		err = vm.connect(ctx)
	}
	if err != nil {
		return nil, s.failed(ctx, vm, err)
	}
	return vm, nil
}

// errBoot means that Firecracker does not boot the machine, possibly because of the kernel.
var errBoot = errors.New("the machine is not booted")

// boot starts m from its kernel, with a new disk.
func (s *Substrate) boot(ctx context.Context, m substrate.Machine) (*machine, error) {
	if err := checkMachine(m); err != nil {
		return nil, err
	}
	if err := checkKernel(m.Kernel, m.KernelIs); err != nil {
		return nil, err
	}
	blank, err := disk.Blank(ctx, "firecracker.disk", s.home, m.Shape.Disk)
	if err != nil {
		return nil, err
	}
	empty, err := s.emptySlot()
	if err != nil {
		return nil, err
	}
	files := []placed{
		{name: kernelName, path: m.Kernel}, {name: initrdName, path: m.Initramfs},
		{name: rootName, path: m.Root}, {name: scratchName, path: blank, copied: true},
		{name: substrate.HomeSerial},
	}
	for i := range substrate.MaxLayers {
		files = append(files, placed{name: substrate.LayerSerial(i), path: empty})
	}
	vm, err := s.launch(ctx, m.Shape, files)
	if err != nil {
		return nil, err
	}
	vm.origin = origin{id: s.identity(m)}
	if err := vm.api.send(ctx, s.bootRequests(m.Shape)...); err != nil {
		return nil, s.failed(ctx, vm, fmt.Errorf("%w: %w", errBoot, err))
	}
	return vm, nil
}

// Restore implements substrate.Substrate.
func (s *Substrate) Restore(ctx context.Context, m substrate.Machine) (substrate.Sandbox, error) {
	if err := checkMachine(m); err != nil {
		return nil, err
	}
	snap, err := s.ensureSnapshot(ctx, m, s.identity(m))
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	vm, err := s.load(ctx, m, snap)
	if err != nil {
		return nil, s.wrap(ctx, err)
	}
	return vm, nil
}

// load starts a clone of a snapshot.
func (s *Substrate) load(ctx context.Context, m substrate.Machine,
	snap snapshot) (*machine, error) {
	files, err := s.restoreFiles(m, snap)
	if err != nil {
		return nil, err
	}
	base, err := os.Open(snap.ram) // its name may be gone when it is needed
	if err != nil {
		return nil, err
	}
	vm, err := s.launch(ctx, m.Shape, files)
	if err != nil {
		_ = base.Close()
		return nil, err
	}
	vm.memory = memory{base: base, holes: s.holes}
	vm.origin = origin{id: s.identity(m), layers: m.Layers, home: m.Home != ""}
	err = vm.api.send(ctx, s.loadRequest())
	if err == nil {
		err = vm.connect(ctx)
	}
	if err != nil {
		return nil, s.failed(ctx, vm, err)
	}
	// the file is open: without its name, it disappears with its last descriptor
	vm.cell.forget(scratchName)
	return vm, nil
}

func (s *Substrate) restoreFiles(m substrate.Machine, snap snapshot) ([]placed, error) {
	empty, err := s.emptySlot()
	if err != nil {
		return nil, err
	}
	files := []placed{
		{name: ramName, path: snap.ram}, {name: stateName, path: snap.state},
		{name: rootName, path: m.Root}, {name: scratchName, path: snap.scratch, copied: true},
	}
	for i := range substrate.MaxLayers {
		path := empty
		if i < len(m.Layers) {
			path = m.Layers[i]
			if err := checkSlot(path); err != nil {
				return nil, err
			}
		}
		files = append(files, placed{name: substrate.LayerSerial(i), path: path})
	}
	if m.Home != "" {
		if err := checkSlot(m.Home); err != nil {
			return nil, err
		}
	}
	return append(files, placed{name: substrate.HomeSerial, path: m.Home, written: true}), nil
}

// failed closes vm, and returns why it failed.
func (s *Substrate) failed(ctx context.Context, vm *machine, err error) error {
	err = vm.why(err)
	_ = vm.Close()
	return s.wrap(ctx, err)
}

// wrap converts an error to the type that callers get. After the end of ctx the error is ctx's,
// whatever failed because of it.
func (s *Substrate) wrap(ctx context.Context, err error) error {
	hint := "run `turn doctor`"
	if errors.Is(err, console.ErrLate) || errors.Is(err, errBoot) || errors.Is(err, errMute) {
		hint = s.guest.Advice()
	}
	ended := ctx.Err()
	var refused *apiError
	if errors.As(err, &refused) && ended == nil {
		if away := turnedAway(refused); away != nil {
			return away
		}
	}
	if ended != nil {
		if !errors.Is(err, ended) {
			err = fmt.Errorf("%w: %w", ended, err)
		}
		return turnstone.NewError("firecracker.start", turnstone.KindCanceled, "firecracker", err)
	}
	return kit.Fault("firecracker.start", "firecracker", s.home.Root, err, hint)
}

// checkKernel rejects an image that Firecracker cannot boot.
func checkKernel(path string, is substrate.KernelKind) error {
	f, err := elf.Open(path)
	if err != nil {
		return turnstone.Errorf("firecracker.boot", turnstone.KindUnavailable, path,
			"firecracker boots an ELF kernel (vmlinux) only: %w", err).WithHint(is.Advice())
	}
	return f.Close()
}
