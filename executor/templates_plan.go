package executor

import (
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
	p.shape.CPUs = or(p.wants.cpus, def.CPUs)
	p.shape.Memory, p.shape.Disk = or(p.wants.memory, def.Memory), or(p.wants.disk, def.Disk)
	if err := p.check(); err != nil {
		return err
	}
	return p.fitLimits()
}
