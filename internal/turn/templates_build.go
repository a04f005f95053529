package turn

import (
	"context"

	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/templatebuild"
)

// layerBuilder builds templates' layers in sandboxes of x.
func (x *Host) layerBuilder() templatebuild.Builder {
	return templatebuild.Builder{
		Start: x.startBuild,
		Store: func(ctx context.Context) (*store.Store, error) {
			cs, err := x.context(ctx)
			if err != nil {
				return nil, err
			}
			return cs.Store, nil
		},
		Tree: func(ctx context.Context, t *template.Template, w tree.Writer) (tree.Ref, error) {
			return x.templates().Tree(ctx, t, w)
		},
	}
}

// startBuild starts the sandbox of a build.
func (x *Host) startBuild(ctx context.Context, req template.LayerRequest) (*Sandbox, collect.Bounds, error) {
	none := collect.Bounds{}
	cs, err := x.context(ctx)
	if err != nil {
		return nil, none, err
	}
	p := &plan{image: req.Base.Name, template: req.Base, cwd: "/", shape: req.Shape, timeout: templatebuild.TimeLimit, driver: "auto"}
	host, err := x.config()
	if err != nil {
		return nil, none, err
	}
	if p.net.Policy, err = templatebuild.Policy(netplan.Host(host.Network), req.Allow, req.Port); err != nil {
		return nil, none, err
	}
	p.net.Spec.DNS = host.Network.DNS
	p.link = netplan.NewLink(p.net, nil)
	if err := p.check(); err != nil {
		return nil, none, err
	}
	if err := x.admit(p, host); err != nil {
		return nil, none, err
	}
	req.Say("starting a sandbox")
	s, err := x.openAt(ctx, p, &branchPoint{cs: cs}, req.Say, newStopwatch())
	return s, p.bounds(x.home), err
}
