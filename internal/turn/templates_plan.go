package turn

import (
	"cmp"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/template"
)

// onTemplate gives p the machine that its template asks for, where neither the turn nor
// its caller asks for another. Of a template that is not known any more it says
// nothing: that comes out where it is needed.
func (p *plan) onTemplate(ts *template.Store) error {
	spec, err := ts.Spec(p.image)
	if err != nil {
		return nil
	}
	def := spec.Machine.Shape(turnstone.DefaultShape())
	p.shape.CPUs = cmp.Or(p.wants.cpus, def.CPUs)
	p.shape.Memory, p.shape.Disk = cmp.Or(p.wants.memory, def.Memory), cmp.Or(p.wants.disk, def.Disk)
	if err := p.check(); err != nil {
		return err
	}
	return p.fitLimits()
}
