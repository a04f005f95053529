package plan

import (
	"cmp"
	"slices"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template"
)

// Templates looks up built templates.
type Templates interface {
	Spec(name string) (*template.Spec, error)
	Known(image string) bool
}

// A Below describes the state of the turn that a turn starts from.
type Below struct {
	Session string // its label
	Image   string
	Cwd     string
	FSHash  turnstone.Digest
	Env     []string
}

// On returns a copy of p in which the parent turn's values replace unset values: the template and
// the working directory. Without a parent turn, p starts from its template.
func (p *Plan) On(below *Below, ts Templates) (*Plan, error) {
	n, err := p.on(below, ts)
	if err == nil {
		n.deriveSeed(below, ts)
	}
	return n, err
}

func (p *Plan) on(below *Below, ts Templates) (*Plan, error) {
	settled := *p
	n := &settled
	n.Env = slices.Clone(p.Env)
	if below == nil {
		return n, n.onTemplate(ts)
	}
	if n.Asked != "" && !template.SameImage(n.Asked, below.Image) {
		return nil, turnstone.Errorf(op, turnstone.KindInvalid, "image "+n.Asked,
			"session %s is on %s", below.Session, below.Image).
			WithHint("leave the image out, or begin another session")
	}
	n.Image, n.Anonymous = below.Image, n.authority.strangersState(below.Image, ts.Known)
	if err := n.onTemplate(ts); err != nil {
		return nil, err
	}
	req := n.authority.Request
	if req.Document.Front.Cwd == "" && n.Cwd != below.Cwd {
		n.Cwd = below.Cwd
		return n, n.files(req)
	}
	return n, nil
}

// At returns a copy of a sandbox's plan that starts from a state: on its image, in its directory.
func (p *Plan) At(below Below, anonymous bool) *Plan {
	n := *p
	n.Image, n.Cwd, n.Anonymous = below.Image, below.Cwd, anonymous
	return &n
}

// Reviving returns a copy of a sandbox's plan whose machine is a clone of a paused or kept machine.
// t is the template of its image; nil: the template is looked up.
func (p *Plan) Reviving(kept bool, t *turnstone.Template) *Plan {
	n := *p
	n.Live, n.Kept, n.Template = true, kept, t
	return &n
}

// onTemplate sets the machine that the template requests, unless the turn or its caller requests
// another machine. Unknown templates are ignored here; a later lookup reports them.
func (p *Plan) onTemplate(ts Templates) error {
	spec, err := ts.Spec(p.Image)
	if err != nil {
		return nil
	}
	if err := p.fitsGuest(spec); err != nil {
		return err
	}
	def := spec.Machine.Shape(turnstone.DefaultShape())
	p.Shape.CPUs = cmp.Or(p.Wants.CPUs, def.CPUs)
	p.oneCPU()
	p.Shape.Memory = cmp.Or(p.Wants.Memory, def.Memory)
	p.Shape.Disk = cmp.Or(p.Wants.Disk, def.Disk)
	if err := p.check(); err != nil {
		return err
	}
	return p.fitLimits()
}

// StrangersImage reports whether an image that a state or a record names is requested like a
// document's image: both may be imported.
func (h Host) StrangersImage(image string, ts Templates) bool {
	return strangers(h, image) && !ts.Known(image)
}
