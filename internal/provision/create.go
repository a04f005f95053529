package provision

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo/rootimage"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A CreateRequest is one sandbox to create. Zero fields select the defaults.
type CreateRequest struct {
	Image     string   // default plan.DefaultImage
	Env       []string // KEY=VALUE, for all processes
	Shape     turnstone.Shape
	Network   *turnstone.NetworkSpec // rules of its network; nil: the host's
	Substrate string                 // "auto" or the name of a substrate
	Hostname  string                 // default: its ID
	// From is a folder that Snapshot has written, of a sandbox with this Image and Shape: the new
	// sandbox continues from that snapshot, and Env has no effect. The folder must exist until
	// Create returns.
	From string
	// Kept is a folder with the files that Keep has written, of a sandbox with this Image and
	// Shape, and KeptLayers are the images that Keep has named: the new sandbox continues from that
	// machine. Both must exist until Create returns.
	Kept       string
	KeptLayers []string
	// Root is the template's image that the sandbox of From or Kept had; empty: the template's
	// current image.
	Root turnstone.Digest
	// On is the turn whose state the sandbox starts from; Env is added to its environment. Empty:
	// none.
	On string
	// Live requests a substrate whose sandboxes can be paused and cloned while running.
	Live bool
	// Stranger means that the image is named by someone who has no right to the credentials of the
	// host's user, unless the host's configuration says otherwise.
	Stranger bool
}

// A Sandbox is what Create returns.
type Sandbox = sandbox.Sandbox

// Create creates a sandbox for the caller. preparing is called before long operations; it may be
// nil.
func Create(ctx context.Context, h *host.Host, req CreateRequest, preparing func(string)) (
	*sandbox.Sandbox, error) {
	preparing = Quietly(preparing)
	facts, err := h.Facts()
	if err != nil {
		return nil, err
	}
	spec := &template.Spec{Name: req.Image}
	anonymous := req.Stranger && facts.StrangersImage(req.Image, h.Templates)
	if req.Root == "" {
		if spec, err = h.TemplatesFor(anonymous).Resolve(ctx,
			cmp.Or(req.Image, plan.DefaultImage), preparing); err != nil {
			return nil, err
		}
	}
	p, err := plan.ForSandbox(plan.Sandbox{Image: spec.Name, Anonymous: anonymous,
		Machine: spec.Machine, Shape: req.Shape, Substrate: req.Substrate, Live: req.Live,
		Hostname: req.Hostname, Env: req.Env, Cwd: spec.Workdir, Network: req.Network}, facts)
	if err != nil {
		return nil, err
	}
	if req.From != "" || req.Kept != "" {
		return revive(ctx, h, p, req, preparing)
	}
	base, err := Named(ctx, h, req.On)
	if err != nil {
		return nil, err
	}
	if b := base.Below(turnstone.Session{}); b != nil {
		p = p.At(*b, facts.StrangersImage(b.Image, h.Templates))
	}
	su, err := Prepare(h, p)
	if err != nil {
		return nil, err
	}
	return Start(ctx, h, su, base, preparing, NewStopwatch())
}

// OpenMachine creates the machine of a sandbox for its holder.
func OpenMachine(ctx context.Context, h *host.Host, id turnstone.SandboxID, spec sandboxes.Spec,
	progress func(string)) (sandboxes.Machine, sandboxes.Details, error) {
	var none sandboxes.Details
	s, err := Create(ctx, h, CreateRequest{Image: spec.Image,
		Env: slices.Concat(spec.Env, spec.Secrets), Shape: spec.Shape,
		Network: spec.Network, Substrate: spec.Substrate,
		Hostname: hostname(id),
		From:     spec.From, Root: spec.Root, On: spec.On, Live: spec.Live,
		Stranger: spec.Stranger}, progress)
	if err != nil {
		return nil, none, err
	}
	t := s.Template
	workdir := cmp.Or(spec.Cwd, t.Workdir)
	if workdir != "" && (spec.Cwd != "" || spec.From == "" && spec.On == "") {
		if err := enter(ctx, s.Client(), workdir, spec.Cwd != ""); err != nil {
			_ = s.Close()
			return nil, none, err
		}
	}
	d := sandboxes.Details{Template: t.Digest, TemplateSize: turnstone.Bytes(t.Size),
		Substrate: s.Substrate(),
		Isolation: s.Isolation(), Workdir: workdir, User: t.User, Command: t.Command}
	if spec.Spare {
		if err := rehearse(ctx, s, d.User); err != nil {
			_ = s.Close()
			return nil, none, err
		}
		park(ctx, s, d.User)
		return &spare{s, h, spec, d}, d, nil
	}
	return s, d, nil
}

// enter makes dir the directory in which commands begin. With exists it has to exist.
func enter(ctx context.Context, c *wire.Client, dir string, exists bool) error {
	if exists {
		f, err := c.FileSystemStat(ctx, &wire.FileSystemStatParams{Path: dir})
		if turnstone.KindOf(err) == turnstone.KindNotFound || err == nil &&
			f.File.Type != wire.FileSystemFileInfoTypeDirectory {
			return turnstone.Errorf("sandbox.create", turnstone.KindInvalid, "cwd "+dir,
				"is no directory of the template").WithHint("leave it out, and make it with a command")
		}
		if err != nil {
			return err
		}
	}
	return c.StateSetSession(ctx, &wire.StateSetSessionParams{Cwd: dir})
}

// revive starts a clone of the machine that Snapshot or Keep has saved, which was started from p,
// and gives the clone an identity of its own.
func revive(ctx context.Context, h *host.Host, p *plan.Plan, req CreateRequest,
	progress func(string)) (_ *sandbox.Sandbox, err error) {
	var tmpl *turnstone.Template
	if req.Root != "" {
		if tmpl, err = rootimage.Template(ctx, h.Repo, h.Templates, req.Image,
			req.Root); err != nil {
			return nil, err
		}
	}
	su, err := Prepare(h, p.Reviving(req.From == "", tmpl))
	if err != nil {
		return nil, err
	}
	start, err := Request(ctx, h, su, progress, NewStopwatch())
	if err != nil {
		return nil, err
	}
	src, err := h.Launcher.Find(ctx, start)
	if err != nil {
		return nil, err
	}
	src.Machine.Layers = req.KeptLayers
	dir := req.From
	if dir == "" {
		var remove func()
		if dir, remove, err = Unpack(ctx, src, substrate.PackedDir(req.Kept),
			sandboxes.NewStore(h.Dir.Root).Folder); err != nil {
			return nil, err
		}
		defer remove()
	}
	return h.Launcher.Revive(ctx, start, src, dir)
}

// Unpack creates a folder for a restore, in one that folder creates, from the files that Keep has
// written of a machine like src's.
func Unpack(ctx context.Context, src *sandbox.Source, kept substrate.PackedFiles,
	folder func() (string, func(), error)) (dir string, remove func(), err error) {
	k, err := src.Keeper()
	if err != nil {
		return "", nil, err
	}
	tmp, remove, err := folder()
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
