// Package buildsandbox starts the sandboxes that templates' layers are built in, with a network
// that reaches what a build needs.
package buildsandbox

import (
	"context"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/repo/pins"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/store"
	"turnstone.dev/turnstone/internal/store/tree"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/internal/templatebuild"
)

// Builder returns what builds templates' layers in sandboxes of h.
func Builder(h *host.Host) template.LayerBuilder {
	return templatebuild.Builder{
		Start: func(ctx context.Context, req template.LayerRequest) (
			*sandbox.Sandbox, collect.Bounds, error) {
			return start(ctx, h, req)
		},
		Store: func(ctx context.Context) (*store.Store, error) {
			cs, err := h.Context(ctx)
			if err != nil {
				return nil, err
			}
			return cs.Store, nil
		},
		Holds: func(ctx context.Context, l turnstone.TemplateLayer) (bool, error) {
			return pins.HasLayer(ctx, h.Repo, l)
		},
		Tree: func(ctx context.Context, t *turnstone.Template, w tree.Writer) (turnstone.TreeRef,
			error) {
			return h.Templates.Tree(ctx, t, w)
		},
	}
}

// start starts the sandbox of a build.
func start(ctx context.Context, h *host.Host, req template.LayerRequest) (*sandbox.Sandbox,
	collect.Bounds, error) {
	none := collect.Bounds{}
	cs, err := h.Context(ctx)
	if err != nil {
		return nil, none, err
	}
	facts, err := h.Facts()
	if err != nil {
		return nil, none, err
	}
	rules := netplan.Rules{Spec: turnstone.NetworkSpec{DNS: facts.Network.DNS}}
	if rules.Policy, err = policy(netplan.Host(facts.Network), req.Allow, req.Port); err != nil {
		return nil, none, err
	}
	p, err := plan.ForSandbox(plan.Sandbox{Image: req.Base.Name, Template: req.Base, Cwd: "/",
		Shape: req.Shape, Rules: &rules}, facts)
	if err != nil {
		return nil, none, err
	}
	su := provision.Setup{Plan: p, Link: netplan.NewLink(rules, nil), Build: true}
	req.Say("starting a sandbox")
	s, err := provision.Start(ctx, h, su, provision.Base{Context: cs}, req.Say,
		provision.NewStopwatch())
	return s, h.Bounds(p, 1), err
}
