package turn

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/templatebuild"
)

// layerBuilder builds templates' layers in sandboxes of x.
func (x *Runner) layerBuilder() templatebuild.Builder {
	return templatebuild.Builder{
		Start: x.startBuild,
		Store: func(ctx context.Context) (*store.Store, error) {
			cs, err := x.context(ctx)
			if err != nil {
				return nil, err
			}
			return cs.Store, nil
		},
		Tree: func(ctx context.Context, t *template.Template, w tree.Writer) (turnstone.TreeRef,
			error) {
			return x.Templates().Tree(ctx, t, w)
		},
	}
}

// startBuild starts the sandbox of a build.
func (x *Runner) startBuild(ctx context.Context, req template.LayerRequest) (*Sandbox, collect.Bounds, error) {
	none := collect.Bounds{}
	cs, err := x.context(ctx)
	if err != nil {
		return nil, none, err
	}
	host, err := x.facts()
	if err != nil {
		return nil, none, err
	}
	rules := netplan.Rules{Spec: turnstone.NetworkSpec{DNS: host.Network.DNS}}
	if rules.Policy, err = templatebuild.Policy(netplan.Host(host.Network), req.Allow, req.Port); err != nil {
		return nil, none, err
	}
	p, err := plan.ForSandbox(plan.Sandbox{Image: req.Base.Name, Template: req.Base, Cwd: "/", Shape: req.Shape, Rules: &rules}, host)
	if err != nil {
		return nil, none, err
	}
	su := setup{plan: p, link: netplan.NewLink(rules, nil)}
	req.Say("starting a sandbox")
	s, err := x.openAt(ctx, su, &branchPoint{cs: cs}, req.Say, newStopwatch())
	return s, x.bounds(p), err
}
