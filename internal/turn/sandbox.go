package turn

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/config"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Sandbox is a machine that was restored, made its own and is ready for work.
// The caller must Close it.
type Sandbox = sandbox.Sandbox

// request returns what a sandbox is started with. It is where the first run on a machine
// spends its minutes.
func (x *Runner) request(ctx context.Context, su setup, progress func(string), clock *stopwatch) (sandbox.Request, error) {
	p := su.plan
	tmpl := p.Template
	if tmpl == nil {
		var err error
		if tmpl, err = x.templatesFor(p.Anonymous).Ensure(ctx, p.Image, progress); err != nil {
			return sandbox.Request{}, err
		}
	}
	clock.lap("template")
	return sandbox.Request{Template: tmpl, Image: p.Image, Shape: p.Shape, Env: su.link.GiveWay(su.env, tmpl.EnvList()),
		Hostname: p.Hostname, Network: sandbox.Network{Options: su.link.Options, Trust: trusts(su.link)},
		Driver: p.Driver, Needs: p.Needs(), Kernel: x.opt.kernel(p.Host.Config), Slots: p.Host.Limits.Sandboxes,
		Progress: progress, Lap: clock.lap}, nil
}

// templatesFor is templates, with registries asked as a stranger would ask where nobody
// that may name one named the image.
func (x *Runner) templatesFor(anonymous bool) *template.Store {
	if anonymous {
		return x.Templates().Anonymous()
	}
	return x.Templates()
}

// config reads the host's configuration.
func (x *Runner) config() (config.Config, error) { return config.Load(x.home.Root) }

// A SandboxRequest is one sandbox to create. Zero values are the defaults.
type SandboxRequest struct {
	Image     string   // default plan.DefaultImage
	Env       []string // KEY=VALUE, for all of its processes
	Shape     turnstone.Shape
	Network   *turnstone.NetworkSpec // rules of its network; nil: the host's
	Substrate string                 // "auto" or a substrate's name
	Hostname  string                 // default: its ID
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
// what can take long; it may be nil.
func (x *Runner) Create(ctx context.Context, req SandboxRequest, preparing func(string)) (*Sandbox, error) {
	preparing = orQuiet(preparing)
	spec := &template.Spec{Name: req.Image}
	var err error
	if req.Root == "" {
		if spec, err = x.Templates().Resolve(ctx, cmp.Or(req.Image, plan.DefaultImage), preparing); err != nil {
			return nil, err
		}
	}
	host, err := x.facts()
	if err != nil {
		return nil, err
	}
	p, err := plan.ForSandbox(plan.Sandbox{Image: spec.Name, Machine: spec.Machine, Shape: req.Shape, Substrate: req.Substrate,
		Live: req.Live, Hostname: req.Hostname, Env: req.Env, Cwd: spec.Workdir, Network: req.Network}, host)
	if err != nil {
		return nil, err
	}
	if req.From != "" || req.Kept != "" {
		return x.revive(ctx, p, req, preparing)
	}
	at, err := x.standOn(ctx, req.On)
	if err != nil {
		return nil, err
	}
	if b := at.below(); b != nil {
		p = p.At(*b, host.StrangersImage(b.Image, x.Templates()))
	}
	su, err := x.setup(p)
	if err != nil {
		return nil, err
	}
	return x.openAt(ctx, su, at, preparing, newStopwatch())
}

// OpenMachine creates the machine of a sandbox for its holder. It is a sandboxes.Opener.
func (x *Runner) OpenMachine(ctx context.Context, id turnstone.SandboxID, spec sandboxes.Spec, progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	var none sandboxes.Details
	s, err := x.Create(ctx, SandboxRequest{Image: spec.Image, Env: slices.Concat(spec.Env, spec.Secrets), Shape: spec.Shape,
		Network: spec.Network, Substrate: spec.Substrate, Hostname: strings.ReplaceAll(string(id), "_", "-"),
		From: spec.From, Root: spec.Root, On: spec.On, Live: spec.Live}, progress)
	if err != nil {
		return nil, none, err
	}
	t := s.Template
	if t.Workdir != "" && spec.From == "" && spec.On == "" {
		if err := s.Client().StateSetSession(ctx, &wire.StateSetSessionParams{Cwd: t.Workdir}); err != nil {
			_ = s.Close()
			return nil, none, err
		}
	}
	return s, sandboxes.Details{Template: t.Digest, TemplateSize: turnstone.Bytes(t.Size), Substrate: s.Substrate(),
		Isolation: s.Isolation(), Workdir: t.Workdir, User: t.User}, nil
}

// standOn returns what a sandbox on the turn that ref names begins with; no ref
// stands for the template.
func (x *Runner) standOn(ctx context.Context, ref string) (*branchPoint, error) {
	if ref == "" {
		return &branchPoint{}, nil
	}
	cs, err := x.context(ctx)
	if err != nil {
		return nil, err
	}
	t, err := cs.DB.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	at := &branchPoint{cs: cs, parent: &t}
	at.state, err = cs.State(ctx, t.State)
	return at, err
}

// revive starts a clone of the machine that Snapshot or Keep has written, which was
// one of p's, and gives it an identity of its own.
func (x *Runner) revive(ctx context.Context, p *plan.Plan, req SandboxRequest, progress func(string)) (_ *Sandbox, err error) {
	var tmpl *template.Template
	if req.Root != "" {
		if tmpl, err = x.templateOn(ctx, req.Image, req.Root); err != nil {
			return nil, err
		}
	}
	su, err := x.setup(p.Reviving(req.From == "", tmpl))
	if err != nil {
		return nil, err
	}
	start, err := x.request(ctx, su, progress, newStopwatch())
	if err != nil {
		return nil, err
	}
	src, err := x.launcher.Find(ctx, start)
	if err != nil {
		return nil, err
	}
	src.Machine.Layers = req.KeptLayers
	dir := req.From
	if dir == "" {
		var remove func()
		if dir, remove, err = x.unpack(ctx, src, substrate.PackedDir(req.Kept)); err != nil {
			return nil, err
		}
		defer remove()
	}
	return x.launcher.Revive(ctx, start, src, dir)
}

// unpack makes a folder to restore from of what Keep has written of a machine like src's.
func (x *Runner) unpack(ctx context.Context, src *sandbox.Source, kept substrate.PackedFiles) (dir string, remove func(), err error) {
	k, err := src.Keeper()
	if err != nil {
		return "", nil, err
	}
	tmp, remove, err := sandboxes.NewStore(x.home).Folder()
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(tmp, "vm")
	if err := k.Unpack(ctx, src.Machine, kept, dir); err != nil {
		remove()
		return "", nil, err
	}
	return dir, remove, nil
}

// A stopwatch records the phases of a turn.
type stopwatch struct {
	last   time.Time
	phases []turnstone.Phase
}

func newStopwatch() *stopwatch { return &stopwatch{last: time.Now()} }

func (w *stopwatch) lap(name string) {
	now := time.Now()
	took := now.Sub(w.last)
	w.last = now
	w.phases = append(w.phases, turnstone.Phase{Name: name, Took: turnstone.Millis(took)})
}

// isCancel tells an interruption by the caller from other ends.
func isCancel(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }
