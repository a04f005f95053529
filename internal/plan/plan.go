// Package plan decides what a turn is: its image, machine, environment, files and network, from its
// caller's and its document's requests and the host's grants. It starts nothing.
package plan

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan/scripts"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/internal/tarfiles"
	"turnstone.dev/turnstone/substrate"
)

const (
	// DefaultImage is the image of a document that names none.
	DefaultImage = scripts.DefaultImage
	// defaultTimeout bounds a turn without a bound of its document or caller, so that a forgotten
	// turn does not occupy its machine forever.
	defaultTimeout = time.Hour
	// DefaultBranch is the branch of a turn that names none.
	DefaultBranch = "main"
)

// A Plan is a Request without open questions. It is immutable: Make and ForSandbox create it from
// facts that were read once, and On returns a copy. The caller closes a plan of Make; after that no
// copy of the plan may be used.
type Plan struct {
	Host Host // the host of the plan

	Image     string
	Template  *turnstone.Template // the template of Image; nil: looked up, and built, later
	Anonymous bool                // only a document names Image: see template.Store.Anonymous
	Asked     string              // the image that the caller or the document names; may be empty

	Shape     turnstone.Shape
	Wants     Wants              // requests for the machine
	Isolation document.Isolation // required by the document
	Driver    string             // "auto" or the name of a substrate
	Live      bool               // the machine is paused, or cloned while running
	Kept      bool               // the machine is a kept machine
	Hostname  string             // empty: the sandbox's ID
	// Determinism is what a deterministic turn runs with; nil: the turn is not deterministic. Its
	// seed is final after On.
	Determinism *turnstone.Determinism
	seed        *uint64 // the requested seed; nil: none
	// NotSeeded is why this host has no tier seeded for a turn that names no tier; nil: it has, or
	// the turn names a tier.
	NotSeeded error

	Env     []string
	Given   []string // the caller's environment, without the document's
	Cwd     string
	Timeout time.Duration
	Timed   bool // Timeout was requested
	Add     []sandbox.Transfer
	Get     []sandbox.Transfer
	folder  *os.Root // the document's folder; nil: the document has no files

	Session, Branch string
	Lifetime        turnstone.Lifetime
	Home            string
	Snapshot        document.Snapshot
	Checkpoint      turnstone.Checkpoint
	Retry           int // how often the turn may start again after its executor was lost
	Secrets         *secret.Set
	Net             netplan.Rules
	Commands        bool // list all commands in the receipt

	guest, place string     // the guest that is asked for, and where; empty: any
	authority    *Authority // decides the document's grants; nil: there is no document
}

// Wants are the requests for the machine; zero fields request nothing.
type Wants struct {
	CPUs         int
	Memory, Disk turnstone.Bytes
	Network      *bool
}

// Fit reports whether a machine of shape s satisfies the requests.
func (w Wants) Fit(s turnstone.Shape) bool {
	return (w.CPUs == 0 || w.CPUs == s.CPUs) && (w.Memory == 0 || w.Memory == s.Memory) &&
		(w.Disk == 0 || w.Disk == s.Disk) && (w.Network == nil || *w.Network == s.Network)
}

const op turnstone.Op = "executor.plan"

func invalid(subject, format string, args ...any) *turnstone.Error {
	return turnstone.Errorf(op, turnstone.KindInvalid, subject, format, args...)
}

// Make returns the plan of a's request, before the turn has a place in its session. image is the
// resolved name of the turn's image, and workdir the working directory of its steps. Make only
// checks that the files for the sandbox exist.
func Make(a *Authority, image, workdir string) (*Plan, error) {
	req, without, err := a.withTier()
	if err != nil {
		return nil, err
	}
	made := *a
	made.Request = req
	p, err := makePlan(&made, image, workdir)
	if err != nil {
		return nil, a.placed(onlyStrict(a, without, err))
	}
	p.authority, p.NotSeeded = a, without
	p.guest, p.place = req.Document.Defaults.Guest, req.Document.Defaults.Place
	return p, nil
}

// makePlan is Make for a request whose tier is known.
func makePlan(a *Authority, image, workdir string) (*Plan, error) {
	p, err := ofTurn(a.Request, workdir, a.Replays)
	if err != nil {
		return nil, err
	}
	p.Image = cmp.Or(image, p.Image) // for an image of a registry, the name with the digest
	p.authority, p.Anonymous, p.Host = a, a.Anonymous(), a.Host
	err = p.fitLimits()
	if err == nil {
		err = p.Host.room()
	}
	if err == nil {
		err = p.planNetwork(a.Request)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close closes the document's folder, which stays open from the check of its files until their use.
func (p *Plan) Close() {
	if p.folder != nil {
		_ = p.folder.Close()
	}
}

// ofTurn combines the values of the caller, the document and the defaults, in this order. workdir
// is the template's working directory for steps.
func ofTurn(req Request, workdir string, replays bool) (*Plan, error) {
	front := req.Document.Front
	p := &Plan{
		Image:      cmp.Or(req.Image, front.Image, DefaultImage),
		Asked:      cmp.Or(req.Image, front.Image),
		Cwd:        InCwd(workdir, front.Cwd),
		Timeout:    cmp.Or(req.Timeout, front.Timeout, defaultTimeout),
		Timed:      req.Timeout != 0 || front.Timeout != 0,
		Env:        append(slices.Clone(front.Env), req.Env...),
		Given:      req.Env,
		Driver:     cmp.Or(req.Substrate, driver.Auto),
		Isolation:  front.Isolation,
		Session:    cmp.Or(req.Session, front.Session),
		Branch:     cmp.Or(req.Branch, front.Branch, DefaultBranch),
		Lifetime:   cmp.Or(req.Lifetime, front.Lifetime, turnstone.LifetimeTurn),
		Snapshot:   cmp.Or(req.Snapshot, front.Snapshot, document.SnapshotNone),
		Home:       cmp.Or(req.Home, front.Home),
		Checkpoint: cmp.Or(req.Checkpoint, front.Checkpoint), Retry: front.Retry,
		Commands: req.Commands,
		Wants: Wants{CPUs: cmp.Or(req.CPUs, front.CPUs), Memory: cmp.Or(req.Memory, front.Memory),
			Disk: cmp.Or(req.Disk, front.Disk), Network: cmp.Or(req.Network, front.Network)},
	}
	if replays { // a replay is in no session and changes nothing that outlives it
		p.Lifetime, p.Snapshot, p.Home = turnstone.LifetimeTurn, document.SnapshotNone, ""
		p.Checkpoint, p.Retry = "", 0
	}
	p.Shape = turnstone.DefaultShape()
	p.Shape.CPUs = cmp.Or(p.Wants.CPUs, p.Shape.CPUs)
	p.Shape.Memory = cmp.Or(p.Wants.Memory, p.Shape.Memory)
	p.Shape.Disk = cmp.Or(p.Wants.Disk, p.Shape.Disk)
	if p.Wants.Network != nil {
		p.Shape.Network = *p.Wants.Network
	}
	if err := p.determine(req); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	if err := p.context(req.Secrets); err != nil {
		return nil, err
	}
	if err := p.noSecret(req); err != nil {
		return nil, err
	}
	if err := p.files(req); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Plan) check() error {
	if err := p.Shape.Validate(); err != nil {
		return turnstone.NewError(op, turnstone.KindInvalid, "", err).
			WithHint("use a value in this range")
	}
	if p.Timeout <= 0 {
		return invalid("timeout", "%s is not a valid time limit", p.Timeout).
			WithHint("use a time above zero, such as 10m")
	}
	if err := driver.Fits(p.Driver, p.Needs()); err != nil {
		return err
	}
	return validEnv(p.Env)
}

// Needs returns what p requires of its substrate.
func (p *Plan) Needs() driver.Needs {
	n := driver.Needs{MicroVM: p.Isolation == document.IsolationMicroVM,
		Live: p.Live || p.Lifetime == turnstone.LifetimeSession ||
			p.Checkpoint == turnstone.CheckpointStep,
		Keep: p.Kept || p.Snapshot == document.SnapshotVM}
	if p.Determinism != nil {
		n.Tier = p.Determinism.Tier
	}
	return n
}

// RunsOn reports whether a machine of a substrate, with this description of its isolation,
// satisfies p.
func (p *Plan) RunsOn(name, isolation string) bool {
	if p.Driver != "" && p.Driver != driver.Auto && p.Driver != name {
		return false
	}
	return p.Isolation != document.IsolationMicroVM ||
		strings.HasPrefix(isolation, "microvm ") &&
			!strings.Contains(isolation, substrate.TestKernel)
}

// Granted reports whether the document's requests under key are granted unchanged. A plan without a
// document has every grant.
func (p *Plan) Granted(key string) bool { return p.authority == nil || p.authority.Granted(key) }

// NotGranted returns the error about a request of the document under key, which flags would grant.
func (p *Plan) NotGranted(name, what, flags, key string) error {
	if p.authority != nil && p.authority.Request.Remote {
		return notGrantedHere(name, what, []string{key})
	}
	return notGranted(name, "document", what, flags, key)
}

// A Sandbox is a sandbox to plan that runs no document. Zero fields select the defaults.
type Sandbox struct {
	Image     string
	Template  *turnstone.Template // the template of Image; nil: looked up, and built, later
	Anonymous bool                // as in Plan
	Machine   turnstone.Machine   // the template's machine, for zero fields of Shape
	Shape     turnstone.Shape
	Fixed     bool // Shape is not reduced if the host gives less
	Substrate string
	Live      bool // the sandbox can be paused, and cloned while running
	Kept      bool // the machine is a kept machine
	Hostname  string

	Env      []string
	Cwd      string
	Timeout  time.Duration
	Add, Get []document.Transfer

	Network *turnstone.NetworkSpec // rules of its network; nil: the host's
	Silent  bool                   // use the host's default in place of Shape.Network
	Rules   *netplan.Rules         // used unchanged in place of Network and Silent
}

// ForSandbox returns the plan of a sandbox on a host. The plan needs no Close.
func ForSandbox(req Sandbox, host Host) (*Plan, error) {
	p := &Plan{Host: host, Image: req.Image, Template: req.Template, Anonymous: req.Anonymous,
		Shape: req.Shape, Driver: cmp.Or(req.Substrate, driver.Auto), Live: req.Live,
		Kept: req.Kept, Hostname: req.Hostname, Env: req.Env, Cwd: req.Cwd,
		Timeout: cmp.Or(req.Timeout, defaultTimeout), Timed: req.Timeout != 0}
	if base := req.Machine.Shape(turnstone.DefaultShape()); p.Shape == (turnstone.Shape{}) {
		p.Shape = base
	} else {
		p.Shape.CPUs = cmp.Or(p.Shape.CPUs, base.CPUs)
		p.Shape.Memory = cmp.Or(p.Shape.Memory, base.Memory)
		p.Shape.Disk = cmp.Or(p.Shape.Disk, base.Disk)
	}
	if req.Fixed {
		p.Wants = Wants{CPUs: p.Shape.CPUs, Memory: p.Shape.Memory, Disk: p.Shape.Disk}
	}
	if err := errors.Join(p.check(), p.transfers(req.Add, req.Get)); err != nil {
		return nil, err
	}
	if err := p.fitLimits(); err != nil {
		return nil, err
	}
	if err := host.room(); err != nil {
		return nil, err
	}
	if req.Rules != nil {
		p.Net = *req.Rules
		return p, nil
	}
	return p, p.sandboxNetwork(req.Network, req.Silent)
}

// InCwd resolves a step's cwd relative to the document's.
func InCwd(base, dir string) string { return tarfiles.Below(base, dir) }
