package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Launcher starts sandboxes. It is safe for concurrent use, unless its fields are changed.
type Launcher struct {
	Dir *statedir.Dir
	// AgentFile is the program that runs in sandboxes; empty: the embedded program.
	AgentFile string
	Programs  driver.Programs
	// KillGrace bounds the time between a kill and a process's end before the machine is ended: see
	// Sandbox.Guard.
	KillGrace time.Duration
	// Wrap replaces the selected driver, for tests; may be nil.
	Wrap func(substrate.Substrate) substrate.Substrate
	// Drivers opens drivers in the place of the real ones, for tests; nil: the real ones.
	Drivers Drivers

	ending endings // of CloseSoon
}

// Drivers opens the driver called name: see driver.Chooser.
type Drivers interface {
	Open(ctx context.Context, name, how string, kernel substrate.GuestKernel) (substrate.Substrate,
		error)
}

// killGrace is the KillGrace of New.
const killGrace = 15 * time.Second

// New returns a Launcher with the state in dir.
func New(dir *statedir.Dir) *Launcher { return &Launcher{Dir: dir, KillGrace: killGrace} }

// A Request describes a sandbox to start.
type Request struct {
	Template *turnstone.Template
	Image    string // the requested name
	Shape    turnstone.Shape
	Env      []string // in addition to the template's
	Owner    string   // of the files that are brought in: as a template's user; empty: root
	Hostname string   // empty: the sandbox's ID
	Network  Network
	// Disk is a folder of the guest that is a folder of the disk which takes its writes, and no part of its state;
	// empty: none.
	Disk string
	// Determinism makes the machine deterministic, and its identity part of that; nil: neither.
	Determinism *turnstone.Determinism
	// Script is what the sandbox does before its host is connected, after its configuration; only
	// for a deterministic machine of the tier strict. Limit bounds its time, and Memory what it
	// takes of the host's memory, with its disks; 0: no bound.
	Script []substrate.Call
	Limit  time.Duration
	Memory turnstone.Bytes

	Driver string // "auto" or a substrate's name
	Needs  driver.Needs
	Kernel kernel.Choice // the kernel of a guest with a Linux kernel
	// maximum number of concurrent sandboxes of this state directory; 0: unlimited
	Slots int

	// Prepare completes the machine before its start; nil: nothing to do. Its results stay until
	// free is called.
	Prepare func(ctx context.Context, m *substrate.Machine) (free func(), err error)

	Progress func(string)      // called before long operations
	Lap      func(what string) // called at the end of each phase

	ahead   bool   // its user is not known yet: see StartAhead
	scratch string // the serial number of the disk that takes the sandbox's writes
}

// A Source is everything that a sandbox starts from, with its driver.
type Source struct {
	Machine substrate.Machine
	Driver  substrate.Substrate
}

// chooser returns what chooses the drivers of machines that boot a guest kernel.
func (l *Launcher) chooser(guest *driver.Kernel, progress func(string)) *driver.Chooser {
	choose := &driver.Chooser{Home: l.Dir, Programs: l.Programs, Progress: progress,
		Kernel: guest.Guest, Wrap: l.Wrap}
	if l.Drivers != nil {
		choose.Open = l.Drivers.Open
	}
	return choose
}

// Substrates returns the names of the substrates that run sandboxes here. It starts no guest.
func (l *Launcher) Substrates(ctx context.Context, choice kernel.Choice) (names []string) {
	choose := l.chooser(driver.KernelIn(l.Dir, choice, nil), func(string) {})
	for _, name := range driver.Names() {
		if name != driver.Auto && choose.Decide(ctx, name, driver.Needs{}).Err == nil {
			names = append(names, name)
		}
	}
	return names
}

// Tier returns the tier of a deterministic turn that names none: see driver.Chooser.
func (l *Launcher) Tier(ctx context.Context, choice kernel.Choice, progress func(string)) (
	tier turnstone.Tier, without, err error) {
	return l.chooser(driver.KernelIn(l.Dir, choice, progress), progress).Tier(ctx)
}

// Has returns why no driver called name serves needs on this host; nil: one does, or one does if a
// guest's start proves it. It starts no guest.
func (l *Launcher) Has(ctx context.Context, choice kernel.Choice, name string,
	needs driver.Needs) error {
	choose := l.chooser(driver.KernelIn(l.Dir, choice, nil), func(string) {})
	d := choose.Decide(ctx, name, needs)
	if d.Substrate != nil || len(d.Unproven()) > 0 {
		return nil
	}
	return d.Err
}

// Find finds or creates everything that a sandbox of req starts from, and selects its driver. The
// first call on a host takes minutes.
func (l *Launcher) Find(ctx context.Context, req Request) (*Source, error) {
	agent, err := agentbin.Agent(l.AgentFile)
	if err != nil {
		return nil, err
	}
	src := &Source{Machine: substrate.Machine{Agent: agent.Read, AgentDigest: agent.Digest,
		Root: req.Template.Root, RootDigest: req.Template.RootDigest, Shape: req.Shape,
		Determinism: substrate.DeterminismOf(req.Determinism)}}
	guest := driver.KernelIn(l.Dir, req.Kernel, req.Progress)
	withKernel := func(ctx context.Context) (substrate.Machine, error) {
		return guest.Fill(ctx, src.Machine, kernel.Program(agent))
	}
	choose := l.chooser(guest, req.Progress)
	choose.Probe = func(ctx context.Context) (substrate.Machine, error) {
		m, err := withKernel(ctx)
		m.Determinism = nil
		return m, err
	}
	if src.Driver, err = choose.Choose(ctx, req.Driver, req.Needs); err != nil {
		return nil, err
	}
	req.Lap("substrate")
	if _, own := src.Driver.(substrate.OwnKernel); own {
		return src, nil
	}
	if src.Machine, err = withKernel(ctx); err != nil {
		return nil, err
	}
	req.Lap("kernel")
	return src, nil
}

// Start restores a machine for req and makes it a separate sandbox.
func (l *Launcher) Start(ctx context.Context, req Request) (*Sandbox, error) {
	src, err := l.Find(ctx, req)
	if err != nil {
		return nil, err
	}
	free := func() {}
	if req.Prepare != nil {
		if free, err = req.Prepare(ctx, &src.Machine); err != nil {
			return nil, err
		}
		req.Lap("layers")
	}
	s, err := l.start(ctx, &req, src)
	if err != nil {
		free()
		return nil, err
	}
	s.free = free
	if fewer := s.Fewer(); fewer != "" {
		req.Progress("the sandbox has " + fewer)
	}
	return s, nil
}

// restore starts src for req and gives the sandbox its own identity.
func (l *Launcher) start(ctx context.Context, req *Request, src *Source) (*Sandbox, error) {
	if err := req.conduct(src); err != nil {
		return nil, err
	}
	s, err := l.take(req, src, func() (substrate.Sandbox, error) {
		return src.Driver.Restore(ctx, src.Machine)
	})
	if err != nil {
		return nil, err
	}
	if !req.ahead {
		s.meter = metered.From(ctx)
	}
	req.Lap("restore")
	if err = s.makeNetwork(ctx, req); err == nil { // while the machine starts
		err = s.connect(ctx, req)
	}
	switch {
	case err != nil:
	case req.ahead:
		err = s.holdNetwork(ctx)
	default:
		err = s.attachNetwork(ctx, req.Network)
	}
	if err != nil {
		err = s.CauseOf(err)
		_ = s.Close()
		return nil, err
	}
	req.Lap("configure")
	return s, nil
}

// Revive starts a clone of a machine of req that Snapshot or Keep has written, and gives the clone
// its own identity. The files are in the folder dir, in the form that src's driver restores.
func (l *Launcher) Revive(ctx context.Context, req Request, src *Source, dir string) (
	*Sandbox, error) {
	resumer, ok := src.Driver.(substrate.Resumer)
	if !ok { // Needs has requested it
		return nil, fmt.Errorf("substrate %s clones no sandboxes", src.Driver.Name())
	}
	s, err := l.take(&req, src, func() (substrate.Sandbox, error) {
		return resumer.RestoreFrom(ctx, src.Machine, dir)
	})
	if err != nil {
		return nil, err
	}
	s.meter = metered.From(ctx)
	id := make([]byte, 16)
	_, _ = rand.Read(id) // documented never to fail
	renew := wire.SandboxRenewParams{Hostname: s.hostname(&req), MachineID: hex.EncodeToString(id)}
	if err = s.renew(ctx, renew); err == nil {
		err = s.makeNetwork(ctx, &req)
	}
	if err == nil {
		err = s.Distrust(ctx, req.Network.Trust)
	}
	if err == nil {
		err = s.attachNetwork(ctx, req.Network)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// take starts a machine in one of the places for sandboxes.
func (l *Launcher) take(req *Request, src *Source, start func() (substrate.Sandbox, error)) (
	*Sandbox, error) {
	slots := req.Slots
	if req.ahead { // Claim takes one
		slots = 0
	}
	slot, err := l.slot(slots)
	if err != nil {
		return nil, err
	}
	vm, err := start()
	if err != nil {
		slot.Release()
		return nil, err
	}
	req.scratch = vm.Scratch()
	s := l.of(vm, src.Machine, req)
	s.slot, s.driver, s.launcher = slot, src.Driver, l
	s.about.Substrate, s.about.Isolation = src.Driver.Name(), src.Driver.Isolation()
	return s, nil
}

// of returns a sandbox of vm, which was started from m and is not connected yet.
func (l *Launcher) of(vm substrate.Sandbox, m substrate.Machine, req *Request) *Sandbox {
	return &Sandbox{Template: req.Template, Image: req.Image, machine: vm, source: m,
		about: About{Shape: m.Shape}, grace: l.KillGrace, spoolDir: l.Dir.Path("sandboxes"),
		port: wire.NewPort(vm.Agent(), true)}
}

// Connect returns a sandbox of vm, whose agent needs no configuration.
func (l *Launcher) Connect(vm substrate.Sandbox, tmpl *turnstone.Template) (*Sandbox, error) {
	s := l.of(vm, substrate.Machine{}, &Request{Template: tmpl})
	return s, s.dial()
}

// slot takes one of the places for concurrent sandboxes. The places are locks, so that a place
// becomes free again however its holder ends.
func (l *Launcher) slot(limit int) (*statedir.Lock, error) {
	lock, err := l.trySlot(limit)
	if turnstone.KindOf(err) == turnstone.KindExhausted {
		l.Wait() // a sandbox that is about to end has a place
		lock, err = l.trySlot(limit)
	}
	return lock, err
}

func (l *Launcher) trySlot(limit int) (*statedir.Lock, error) {
	if limit == 0 {
		return nil, nil
	}
	if _, err := l.Dir.MkdirAll("slots"); err != nil {
		return nil, err
	}
	first := mrand.IntN(limit) // otherwise later sandboxes would first try every occupied place
	for i := range limit {
		lock, err := statedir.TryAcquire(l.Dir.Path("slots", strconv.Itoa((first+i)%limit)))
		if lock != nil || err != nil {
			return lock, err
		}
	}
	return nil, turnstone.Errorf("executor.slots", turnstone.KindExhausted, "sandboxes",
		"%d run concurrently with this state directory, which is the limit", limit).
		WithHint("wait for some to end, or remove some (turn sandbox ls), " +
			"or raise sandboxes in [limits] of " + config.File)
}

// hostname returns the host name of the sandbox.
func (s *Sandbox) hostname(req *Request) string {
	if s.source.Determinism != nil {
		return req.deterministicHostname()
	}
	return cmp.Or(req.Hostname, strings.ReplaceAll(string(s.ID()), "_", "-"))
}

// connect starts the link to the agent and configures the sandbox.
func (s *Sandbox) connect(ctx context.Context, req *Request) error {
	if err := s.dial(); err != nil {
		return err
	}
	return s.configure(ctx, req, configureLimit)
}

// configureLimit bounds the time until a restored guest confirms its configuration, which takes
// about ten milliseconds.
const configureLimit = time.Minute

// configure gives the clone its own identity, and rejects a clone that does not confirm its own
// random numbers.
func (s *Sandbox) configure(caller context.Context, req *Request, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(caller, limit)
	defer cancel()
	// The protocol cannot stop a guest that does not read; this does.
	defer context.AfterFunc(ctx, func() { _ = s.machine.Close() })()
	params := req.configuration(s.Template, s.source, s.hostname(req), req.scratch)
	// A machine without a card gets a card from attachNetwork.
	if _, card := s.machine.(substrate.Networker); card && req.Shape.Network {
		net := s.net.guest()
		params.Network = &net
	}
	res, err := s.client.SandboxConfigure(ctx, &params)
	if err != nil && ctx.Err() != nil && caller.Err() == nil {
		return turnstone.Errorf("executor.configure", turnstone.KindDead, string(s.ID()),
			"the agent does not answer within %s", limit).WithHint(s.source.KernelIs.Advice())
	}
	if err != nil {
		return err
	}
	if !res.Reseeded {
		return turnstone.Errorf("executor.configure", turnstone.KindIntegrity, string(s.ID()),
			"the sandbox did not confirm fresh random numbers; it is not used")
	}
	return s.accept(res)
}

// configuration returns the parameters of Sandbox.configure for the machine m, without a network.
func (req *Request) configuration(t *turnstone.Template, m substrate.Machine, hostname,
	scratch string) wire.SandboxConfigureParams {
	own := ownIdentity(m.Determinism)
	params := wire.SandboxConfigureParams{
		Entropy: own.entropy, Time: own.clock.Format(time.RFC3339Nano), Scratch: scratch,
		Hostname:  hostname,
		MachineID: hex.EncodeToString(own.machineID),
		Env:       append(t.EnvList(), req.Env...),
		Owner:     req.Owner,
		Disk:      req.Disk,

		Deterministic: m.Determinism != nil,
	}
	for i := range m.Layers {
		params.Layers = append(params.Layers, substrate.LayerSerial(i))
	}
	if m.Home != "" {
		params.Home = &wire.SandboxHomeDisk{Serial: substrate.HomeSerial,
			Path: homePath(params.Env)}
	}
	return params
}

// homePath returns the mount point of a persistent home directory: $HOME.
func homePath(env []string) string {
	path := "/root" // the agent's default
	for _, kv := range env {
		v, ok := strings.CutPrefix(kv, "HOME=")
		if ok && strings.HasPrefix(v, "/") && strings.Trim(v, "/") != "" {
			path = v
		}
	}
	return path
}
