package executor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/guest/agentbin"
	"turnstone.dev/turnstone/internal/guest/kernel"
	"turnstone.dev/turnstone/internal/network"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Sandbox is a machine that was restored, made its own and is ready for work.
// The caller must Close it. Its methods are safe for concurrent use.
type Sandbox struct {
	Template *template.Template
	Image    string // the name that was asked for

	machine substrate.Sandbox
	source  substrate.Machine // what machine was started from
	driver  substrate.Substrate
	port    *wire.Port
	layers  int  // that lie in its slots
	home    bool // it has a home disk
	cpus    int  // that its kernel has brought up; 0: not known

	net *guestNetwork // nil: none

	slot     *statedir.Lock // its place among those that run at once
	free     func()         // frees what it lies on; may be nil
	freeOnce sync.Once

	mu     sync.Mutex // for link and client, which are others after a Pause or Snapshot
	link   *wire.Link
	client *wire.Client
	broken error // what ended the machine that its guest's link was ended for

	live   sync.Mutex // one Pause, Resume or Snapshot at a time
	paused bool
	upper  string // what Pause returns

	spoolDir string   // for exported
	exported *os.File // while paused, of a machine whose disk the host cannot read
}

// ID names the sandbox.
func (s *Sandbox) ID() turnstone.SandboxID { return s.machine.ID() }

// Substrate is the name of what runs it.
func (s *Sandbox) Substrate() string { return s.driver.Name() }

// Isolation says how it is kept apart.
func (s *Sandbox) Isolation() string { return s.driver.Isolation() }

// Client is a connection of the wire that belongs to the sandbox. After Resume and
// Snapshot it is another one.
func (s *Sandbox) Client() *wire.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// Connect opens one more connection to the agent, which the caller closes.
func (s *Sandbox) Connect() (wire.LinkStream, error) {
	s.mu.Lock()
	link := s.link
	s.mu.Unlock()
	return link.Open()
}

// Done is closed when the machine has ended.
func (s *Sandbox) Done() <-chan struct{} { return s.machine.Done() }

// Err says why the machine ended: nil before Done and after Close.
func (s *Sandbox) Err() error {
	if err := s.machine.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// Close ends the machine at once and frees all it holds. The machine goes first:
// a guest that reads nothing could hold up a connection's end.
func (s *Sandbox) Close() error {
	err := s.machine.Close()
	s.net.close()
	s.freeOnce.Do(func() {
		if s.free != nil {
			s.free()
		}
		s.slot.Release()
	})
	s.live.Lock()
	s.dropExport()
	s.live.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		_ = s.link.Close()
	}
	if s.client != nil {
		_ = s.client.Close()
	}
	return err
}

// guard ends s's machine when ctx has ended and release is not called soon after:
// a guest is asked to kill what it runs, and a hostile one need not obey.
func (x *Host) guard(ctx context.Context, s *Sandbox) (release func()) {
	released := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-released:
		case <-time.After(x.killGrace):
			_ = s.machine.Close()
		}
	})
	return func() {
		stop()
		close(released)
	}
}

// ended says whether the machine is gone, for whatever reason.
func (s *Sandbox) ended() bool {
	select {
	case <-s.Done():
		return true
	default:
		return false
	}
}

// causeOf prefers the reason why the machine ended to err, which is what its end
// looked like from the connection.
func (s *Sandbox) causeOf(err error) error {
	if err == nil || turnstone.KindOf(err) != turnstone.KindDead {
		return err
	}
	select {
	case <-s.Done():
		if cause := s.Err(); cause != nil {
			return cause
		}
	case <-time.After(2 * time.Second): // the connection is gone: the process follows
	}
	return err
}

// machine finds or makes everything a sandbox of p starts from. It is where the
// first run on a machine spends its minutes.
func (x *Host) machine(ctx context.Context, p *plan, progress func(string), clock *stopwatch) (*source, error) {
	tmpl, err := p.template, error(nil)
	if tmpl == nil {
		if tmpl, err = x.templatesFor(p.anonymous).Ensure(ctx, p.image, progress); err != nil {
			return nil, err
		}
	}
	clock.lap("template")
	agent, err := agentbin.Agent()
	if err != nil {
		return nil, err
	}
	src := &source{tmpl: tmpl, machine: substrate.Machine{Agent: agent.Read, AgentDigest: agent.Digest,
		Root: tmpl.Root, RootDigest: tmpl.RootDigest, Shape: p.shape}}
	host, err := x.config()
	if err != nil {
		return nil, err
	}
	guest := driver.KernelIn(x.home, host.GuestKernel(), progress)
	withKernel := func(ctx context.Context) (substrate.Machine, error) {
		return guest.Fill(ctx, src.machine, kernel.Program(agent))
	}
	choose := driver.Chooser{Home: x.home, Progress: progress, Probe: withKernel, Kernel: guest.Guest, Wrap: x.wrap}
	if src.driver, err = choose.Choose(ctx, p.driver, p.needs()); err != nil {
		return nil, err
	}
	clock.lap("substrate")
	if _, own := src.driver.(substrate.OwnKernel); own {
		return src, nil
	}
	if src.machine, err = withKernel(ctx); err != nil {
		return nil, err
	}
	clock.lap("kernel")
	return src, nil
}

// A source is everything that a sandbox starts from, and what starts it.
type source struct {
	tmpl    *template.Template
	machine substrate.Machine
	driver  substrate.Substrate
}

// needs is what p asks of its substrate.
func (p *plan) needs() driver.Needs {
	return driver.Needs{MicroVM: p.isolation == document.IsolationMicroVM, Home: p.home != "",
		Live: p.live || p.lifetime == document.LifetimeSession, Keep: p.kept || p.snapshot == document.SnapshotVM}
}

// templatesFor is templates, with registries asked as a stranger would ask where nobody
// that may name one named the image.
func (x *Host) templatesFor(anonymous bool) *template.Store {
	if anonymous {
		return x.templates().Anonymous()
	}
	return x.templates()
}

// strangersImage tells whether an image that a state or a record names is asked for as a
// document's is: they may be imported.
func (x *Host) strangersImage(image string) (bool, error) {
	host, err := x.config()
	return strangers(host, image) && !x.templates().Known(image), err
}

// config reads the host's configuration.
func (x *Repo) config() (config.Config, error) { return config.Load(x.home.Root) }

// A SandboxRequest is one sandbox to create. Zero values are the defaults.
type SandboxRequest struct {
	Image     string   // default DefaultImage
	Env       []string // KEY=VALUE, for all of its processes
	Shape     turnstone.Shape
	Network   *network.Spec // rules of its network; nil: the host's
	Substrate string        // "auto" or a substrate's name
	Hostname  string        // default: its ID
	// From is a folder that Snapshot has written of a sandbox with this Image and
	// Shape: the new one goes on where that one was, and Env is left out. It is
	// needed until Create returns.
	From string
	// Kept is a folder with the files that Keep has written, of a sandbox with this
	// Image and Shape, and KeptLayers are the images that it has named: the new one goes
	// on where that one was. Both are needed until Create returns.
	Kept       string
	KeptLayers []string
	// Root is the template's image that the sandbox of From or Kept had; empty: the one that
	// the template has today.
	Root turnstone.Digest
	// On is the turn on whose state it begins; Env comes on top. Empty: none.
	On string
	// Live asks for a substrate whose sandboxes can be paused, and cloned as they run.
	Live bool
}

// Create makes a sandbox of its own for the caller. preparing is called before
// what can take long.
func (x *Host) Create(ctx context.Context, req SandboxRequest, preparing func(string)) (*Sandbox, error) {
	spec := &template.Spec{Name: req.Image}
	var err error
	if req.Root == "" {
		if spec, err = x.templates().Resolve(ctx, cmp.Or(req.Image, DefaultImage), preparing); err != nil {
			return nil, err
		}
	}
	p := &plan{image: spec.Name, cwd: spec.Workdir, shape: req.Shape, env: req.Env, hostname: req.Hostname,
		timeout: DefaultTimeout, driver: cmp.Or(req.Substrate, "auto"), live: req.Live}
	if p.shape == (turnstone.Shape{}) {
		p.shape = spec.Machine.Shape(turnstone.DefaultShape())
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := x.admit(p); err != nil {
		return nil, err
	}
	if err := x.planSandbox(p, req.Network, false); err != nil {
		return nil, err
	}
	if req.From != "" || req.Kept != "" {
		return x.revive(ctx, p, req, preparing)
	}
	at, err := x.standOn(ctx, p, req.On)
	if err != nil {
		return nil, err
	}
	return x.openAt(ctx, p, at, preparing, newStopwatch())
}

// standOn returns what a sandbox on the turn that ref names begins with; no ref
// stands for the template.
func (x *Host) standOn(ctx context.Context, p *plan, ref string) (*branchPoint, error) {
	if ref == "" {
		return &branchPoint{}, nil
	}
	cs, err := x.context(ctx)
	if err != nil {
		return nil, err
	}
	t, err := cs.db.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	at := &branchPoint{cs: cs, parent: &t}
	if at.state, err = cs.state(ctx, t.State); err != nil {
		return nil, err
	}
	p.image, p.cwd = at.state.Image, at.state.Cwd
	p.anonymous, err = x.strangersImage(p.image)
	return at, err
}

// open restores a sandbox for p and makes it its own.
func (x *Host) open(ctx context.Context, p *plan, progress func(string), clock *stopwatch) (*Sandbox, error) {
	src, err := x.machine(ctx, p, progress, clock)
	if err != nil {
		return nil, err
	}
	free := func() {}
	if p.prepare != nil {
		if free, err = p.prepare(ctx, src.tmpl, &src.machine); err != nil {
			return nil, err
		}
		clock.lap("layers")
	}
	s, err := x.start(ctx, p, src, clock)
	if err != nil {
		free()
		return nil, err
	}
	s.free = free
	if fewer := s.Fewer(); fewer != "" {
		progress("the sandbox has " + fewer)
	}
	return s, nil
}

// start restores src for p and makes it its own.
func (x *Host) start(ctx context.Context, p *plan, src *source, clock *stopwatch) (*Sandbox, error) {
	slot, err := x.slot(p.limits.Sandboxes)
	if err != nil {
		return nil, err
	}
	vm, err := src.driver.Restore(ctx, src.machine)
	if err != nil {
		slot.Release()
		return nil, err
	}
	clock.lap("restore")
	p.env = p.net.giveWay(p.env, src.tmpl.EnvList())
	s := &Sandbox{Template: src.tmpl, Image: p.image, slot: slot, machine: vm, source: src.machine, driver: src.driver, spoolDir: x.home.Path("sandboxes"), port: wire.NewPort(vm.Agent(), true),
		layers: len(src.machine.Layers), home: src.machine.Home != ""}
	if err = s.makeNetwork(ctx, p); err == nil { // while the machine wakes up
		err = s.connect(ctx, p)
	}
	if err == nil {
		err = s.attachNetwork(ctx, p)
	}
	if err != nil {
		err = s.causeOf(err)
		_ = s.Close()
		return nil, err
	}
	clock.lap("configure")
	return s, nil
}

// connect starts the link to the agent and configures the sandbox.
func (s *Sandbox) connect(ctx context.Context, p *plan) error {
	if err := s.dial(); err != nil {
		return err
	}
	return s.configure(ctx, p, configureLimit)
}

// configureLimit bounds how long a restored guest may take to confirm; it takes
// some ten milliseconds.
const configureLimit = time.Minute

// configure makes the clone a machine of its own, and refuses one that does not
// confirm that its random numbers are.
func (s *Sandbox) configure(caller context.Context, p *plan, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(caller, limit)
	defer cancel()
	// One that does not even read is ended by this, not by the protocol.
	defer context.AfterFunc(ctx, func() { _ = s.machine.Close() })()
	entropy, machineID := make([]byte, 64), make([]byte, 16)
	_, _ = rand.Read(entropy) // documented never to fail
	_, _ = rand.Read(machineID)
	params := wire.SandboxConfigureParams{
		Entropy: entropy, Time: time.Now().Format(time.RFC3339Nano), Scratch: s.machine.Scratch(),
		Hostname:  cmp.Or(p.hostname, strings.ReplaceAll(string(s.ID()), "_", "-")),
		MachineID: hex.EncodeToString(machineID),
		Env:       append(s.Template.EnvList(), p.env...),
	}
	if _, card := s.machine.(substrate.Networker); card && p.shape.Network { // else attachNetwork brings one
		params.Network = &wire.SandboxNetwork{Address: network.GuestAddress, Gateway: network.Gateway, DNS: []string{network.DNS}}
	}
	for i := range s.layers {
		params.Layers = append(params.Layers, substrate.LayerSerial(i))
	}
	if s.home {
		params.Home = &wire.SandboxHomeDisk{Serial: substrate.HomeSerial, Path: homePath(params.Env)}
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

// homePath is where a persistent home directory is mounted: at $HOME.
func homePath(env []string) string {
	path := "/root" // the agent's default
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "HOME="); ok && strings.HasPrefix(v, "/") && strings.Trim(v, "/") != "" {
			path = v
		}
	}
	return path
}

// A stopwatch records the phases of a turn.
type stopwatch struct {
	last   time.Time
	phases []Phase
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

func (w *stopwatch) lap(name string) {
	now := time.Now()
	took := now.Sub(w.last)
	w.last = now
	w.phases = append(w.phases, Phase{Name: name, Took: turnstone.Millis(took)})
}

// isCancel tells an interruption by the caller from other ends.
func isCancel(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
