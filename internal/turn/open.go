package turn

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox/userhome"
	"turnstone.dev/turnstone/internal/template"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// open makes a sandbox for the turn, on the state that it begins with.
func (r *run) open(ctx context.Context) (*Sandbox, error) {
	su := r.setup
	su.env = append(slices.Clone(su.env), r.plan.Secrets.Env()...)
	r.info.Start = "the template"
	if r.at.parent != nil {
		r.info.Start = fmt.Sprintf("turn %d", r.at.parent.Number)
	}
	if r.plan.Lifetime == turnstone.LifetimeSession {
		return r.openPaused(ctx, su)
	}
	if r.skipsPaused() {
		r.obs.Preparing("the session's paused machine is not used: this turn has lifetime: turn")
	}
	return r.x.openAt(ctx, su, r.at, r.obs.Preparing, r.clock)
}

// A setup is what a sandbox is started with. It does not change once it is made.
type setup struct {
	plan *plan.Plan
	turn turnstone.TurnID // that it is for; empty: for none
	env  []string         // of the sandbox's processes: the plan's, and what the link adds
	link *netplan.Link    // serves the plan's network; nil: there is none
}

// setup gets ready the network of a sandbox of p.
func (x *Runner) setup(p *plan.Plan) (setup, error) {
	return x.trusting(p, netplan.NewLink(p.Net, x.opened.Share()), nil)
}

// trusting returns what a sandbox of p is started with whose network link serves. before is
// the environment that p's comes on top of.
func (x *Runner) trusting(p *plan.Plan, link *netplan.Link, before []string) (setup, error) {
	su := setup{plan: p, env: p.Env, link: link}
	if !p.Shape.Network {
		return su, nil
	}
	more, err := link.Trust(netplan.Authorities(x.home), slices.Concat(before, p.Env))
	su.env = slices.Concat(p.Env, more)
	return su, err
}

// openAt makes a sandbox on the state of at's parent.
func (x *Runner) openAt(ctx context.Context, su setup, at *branchPoint, progress func(string), clock *stopwatch) (*Sandbox, error) {
	req, err := x.request(ctx, su, progress, clock)
	if err != nil {
		return nil, err
	}
	req.Prepare = func(ctx context.Context, m *substrate.Machine) (func(), error) {
		return x.below(ctx, su, at, req.Template, m, progress)
	}
	s, err := x.launcher.Start(ctx, req)
	if err != nil || at.state == nil {
		return s, err
	}
	if err := s.Client().StateSetSession(ctx, &wire.StateSetSessionParams{Cwd: su.plan.Cwd, Env: mergeEnv(at.state.Env, req.Env)}); err != nil {
		err = s.CauseOf(err)
		_ = s.Close()
		return nil, err
	}
	clock.lap("environment")
	return s, nil
}

// below puts into m what a sandbox on at's state lies on. It all stays until
// release is called.
func (x *Runner) below(ctx context.Context, su setup, at *branchPoint, tmpl *template.Template, m *substrate.Machine, progress func(string)) (release func(), err error) {
	release = func() {}
	if p := su.plan; p.Home != "" {
		use := userhome.Request{Name: p.Home, Turn: su.turn, Timeout: p.Timeout}
		if m.Home, release, err = x.Homes().Acquire(ctx, use, progress); err != nil {
			return nil, err
		}
	}
	if at.layers = tmpl.Layers; at.state == nil && len(at.layers) == 0 {
		return release, nil
	}
	unlock := release
	if at.cs == nil {
		at.cs, err = x.context(ctx)
	}
	var base turnstone.TreeRef
	if err == nil {
		base, err = at.cs.RootTree(ctx, tmpl)
	}
	if err == nil {
		m.Layers, release, err = at.cs.Images.Stack(ctx, base, at.history(ctx))
	}
	if err != nil {
		unlock()
		return nil, err
	}
	free := release
	return func() { free(); unlock() }, nil
}

// mergeEnv returns base with the variables of more in the place of its own.
func mergeEnv(base, more []string) []string {
	at := map[string]int{}
	var env []string
	for _, kv := range append(append([]string(nil), base...), more...) {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			env[i] = kv
			continue
		}
		at[name] = len(env)
		env = append(env, kv)
	}
	return env
}
