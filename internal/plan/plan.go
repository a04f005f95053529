// Package plan decides what a turn is: which image, machine, environment, files and network, from
// what its caller and its document say and what the host grants. It starts nothing.
package plan

import (
	"cmp"
	"errors"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/secret"
	"turnstone.dev/turnstone/substrate"
)

const (
	// DefaultImage is the image of a document that names none.
	DefaultImage = "base"
	// defaultTimeout bounds a turn whose document and caller set no bound, so that a forgotten
	// turn does not hold its machine for ever.
	defaultTimeout = time.Hour
	// DefaultBranch is the branch of a turn that names none.
	DefaultBranch = "main"
)

// A Plan is a Request with every question answered. It is immutable: Make and ForSandbox make it
// from facts that were read once, and On returns a copy. The caller closes a plan of Make, after
// which no copy of it may be used.
type Plan struct {
	Host Host // that it was made for

	Image     string
	Template  *turnstone.Template // what Image stands for; nil: it is looked up, and built
	Anonymous bool                // only a document names Image: see template.Store.Anonymous
	Asked     string              // the image that the caller or the document names; may be empty

	Shape     turnstone.Shape
	Wants     Wants              // of the machine
	Isolation document.Isolation // required by the document
	Driver    string             // "auto" or a substrate's name
	Live      bool               // its machine is paused, or cloned as it runs
	Kept      bool               // its machine is one that was kept
	Hostname  string             // empty: the sandbox's ID

	Env     []string
	Given   []string // environment that the caller gave beside the document
	Cwd     string
	Timeout time.Duration
	Timed   bool // somebody asked for Timeout
	Add     []sandbox.Transfer
	Get     []sandbox.Transfer
	folder  *os.Root // the document's; nil: no file of it is read

	Session, Branch string
	Lifetime        turnstone.Lifetime
	Home            string
	Snapshot        document.Snapshot
	Secrets         *secret.Set
	Net             netplan.Rules
	Commands        bool // the receipt lists all commands

	authority *Authority // what the document is granted; nil: there is no document
}

// Wants is what was asked of the machine; zero where its turn takes what there is.
type Wants struct {
	CPUs         int
	Memory, Disk turnstone.Bytes
	Network      *bool
}

// Fit reports whether a machine of shape s is what was asked for.
func (w Wants) Fit(s turnstone.Shape) bool {
	return (w.CPUs == 0 || w.CPUs == s.CPUs) && (w.Memory == 0 || w.Memory == s.Memory) &&
		(w.Disk == 0 || w.Disk == s.Disk) && (w.Network == nil || *w.Network == s.Network)
}

const op turnstone.Op = "executor.plan"

func invalid(subject, format string, args ...any) error {
	return turnstone.Errorf(op, turnstone.KindInvalid, subject, format, args...)
}

// Make returns the plan of a's request, before the turn has a place in its session. image is what
// the turn's image stands for, and workdir where its steps run. Make reads only whether the files
// exist that go into the sandbox.
func Make(a *Authority, image, workdir string) (*Plan, error) {
	p, err := ofTurn(a.Request, workdir, a.Replays)
	if err != nil {
		return nil, err
	}
	p.Image = cmp.Or(image, p.Image) // of an image of a registry, with the digest
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

// Close closes the document's folder, which stays open from the check of its files: to their
// use.
func (p *Plan) Close() {
	if p.folder != nil {
		_ = p.folder.Close()
	}
}

// ofTurn merges what the caller, the document and the defaults say, in this order.
// workdir is where the template has its steps run.
func ofTurn(req Request, workdir string, replays bool) (*Plan, error) {
	front := req.Document.Front
	p := &Plan{
		Image:     cmp.Or(req.Image, front.Image, DefaultImage),
		Asked:     cmp.Or(req.Image, front.Image),
		Cwd:       InCwd(workdir, front.Cwd),
		Timeout:   cmp.Or(req.Timeout, front.Timeout, defaultTimeout),
		Timed:     req.Timeout != 0 || front.Timeout != 0,
		Env:       append(slices.Clone(front.Env), req.Env...),
		Given:     req.Env,
		Driver:    cmp.Or(req.Substrate, driver.Auto),
		Isolation: front.Isolation,
		Session:   cmp.Or(req.Session, front.Session),
		Branch:    cmp.Or(req.Branch, front.Branch, DefaultBranch),
		Lifetime:  cmp.Or(req.Lifetime, front.Lifetime, turnstone.LifetimeTurn),
		Snapshot:  cmp.Or(req.Snapshot, front.Snapshot, document.SnapshotNone),
		Home:      cmp.Or(req.Home, front.Home),
		Commands:  req.Commands,
		Wants: Wants{CPUs: cmp.Or(req.CPUs, front.CPUs), Memory: cmp.Or(req.Memory, front.Memory),
			Disk: cmp.Or(req.Disk, front.Disk), Network: cmp.Or(req.Network, front.Network)},
	}
	if replays { // it belongs to no session and changes nothing that outlives it
		p.Lifetime, p.Snapshot, p.Home = turnstone.LifetimeTurn, document.SnapshotNone, ""
	}
	p.Shape = turnstone.DefaultShape()
	p.Shape.CPUs = cmp.Or(p.Wants.CPUs, p.Shape.CPUs)
	p.Shape.Memory = cmp.Or(p.Wants.Memory, p.Shape.Memory)
	p.Shape.Disk = cmp.Or(p.Wants.Disk, p.Shape.Disk)
	if p.Wants.Network != nil {
		p.Shape.Network = *p.Wants.Network
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
		return turnstone.NewError(op, turnstone.KindInvalid, "", err)
	}
	if p.Timeout <= 0 {
		return invalid("timeout", "%s is not a time to run", p.Timeout)
	}
	if err := driver.Fits(p.Driver, p.Needs()); err != nil {
		return err
	}
	return validEnv(p.Env)
}

// Needs is what p asks of its substrate.
func (p *Plan) Needs() driver.Needs {
	return driver.Needs{MicroVM: p.Isolation == document.IsolationMicroVM, Home: p.Home != "",
		Live: p.Live || p.Lifetime == turnstone.LifetimeSession,
		Keep: p.Kept || p.Snapshot == document.SnapshotVM}
}

// RunsOn tells whether a machine of a substrate, with its word on how it isolates, is what p
// asks for.
func (p *Plan) RunsOn(name, isolation string) bool {
	if p.Driver != "" && p.Driver != driver.Auto && p.Driver != name {
		return false
	}
	return p.Isolation != document.IsolationMicroVM ||
		strings.HasPrefix(isolation, "microvm ") &&
			!strings.Contains(isolation, substrate.TestKernel)
}

// Granted reports whether what the document asks for under key is granted as it stands. A plan
// without a document has every key.
func (p *Plan) Granted(key string) bool { return p.authority == nil || p.authority.Granted(key) }

// A Sandbox is a sandbox to plan that runs no document. Zero values are the defaults.
type Sandbox struct {
	Image     string
	Template  *turnstone.Template // what Image stands for; nil: it is looked up, and built
	Anonymous bool                // as in Plan
	Machine   turnstone.Machine   // of the template, where Shape is zero
	Shape     turnstone.Shape
	Fixed     bool // Shape is not made smaller where the host gives less
	Substrate string
	Live      bool // it can be paused, and cloned as it runs
	Kept      bool // its machine is one that was kept
	Hostname  string

	Env      []string
	Cwd      string
	Timeout  time.Duration
	Add, Get []document.Transfer

	Network *turnstone.NetworkSpec // rules of its network; nil: the host's
	Silent  bool                   // the host's default counts, and not Shape.Network
	Rules   *netplan.Rules         // in the place of Network and Silent, as they stand
}

// ForSandbox returns the plan of a sandbox on a host. It needs no Close.
func ForSandbox(req Sandbox, host Host) (*Plan, error) {
	p := &Plan{Host: host, Image: req.Image, Template: req.Template, Anonymous: req.Anonymous,
		Shape: req.Shape, Driver: cmp.Or(req.Substrate, driver.Auto), Live: req.Live,
		Kept: req.Kept, Hostname: req.Hostname, Env: req.Env, Cwd: req.Cwd,
		Timeout: cmp.Or(req.Timeout, defaultTimeout), Timed: req.Timeout != 0}
	if p.Shape == (turnstone.Shape{}) {
		p.Shape = req.Machine.Shape(turnstone.DefaultShape())
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

// InCwd resolves a step's cwd against the document's.
func InCwd(base, dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(base, dir)
}
