// Package provision starts the sandboxes that plans request: on a template or on the state of a
// turn, with their network, their home directory and their environment.
package provision

import (
	"context"
	"slices"
	"strings"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/netplan"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/repo/homes"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// A Setup contains the settings of a sandbox's start. It is immutable.
type Setup struct {
	Plan *plan.Plan
	Turn turnstone.TurnID // the turn of the sandbox; empty: none
	Env  []string         // environment of the processes: the plan's and the link's
	Link *netplan.Link    // serves the plan's network; nil: no network
	Home *homes.Home      // its home directory; nil: none
	// Build says that the sandbox builds a template: its files are root's, as in any build of an image.
	Build bool
	// Ahead is the place of a turn whose sandbox may wait already; nil: it is started.
	Ahead *Ahead
	// Script returns what the sandbox does before its host is connected, after SetSession: see
	// sandbox.Request. user is the user of the template. Nil: nothing.
	Script func(ctx context.Context, user string) ([]substrate.Call, error)
}

// Prepare prepares the network of a sandbox of p.
func Prepare(h *host.Host, p *plan.Plan) (Setup, error) {
	return Trusting(h, p, h.Link(p.Net), nil)
}

// Trusting returns the setup of a sandbox of p whose network link serves. before is the environment
// that p's environment is added to.
func Trusting(h *host.Host, p *plan.Plan, link *netplan.Link, before []string) (Setup, error) {
	su := Setup{Plan: p, Env: p.Env, Link: link}
	if !p.Shape.Network {
		return su, nil
	}
	if p.Determinism != nil {
		link.Clock = p.Determinism.Clock
	}
	more, err := link.Trust(netplan.Authorities(h.Dir), slices.Concat(before, p.Env))
	su.Env = slices.Concat(p.Env, more)
	return su, err
}

// Trust returns the authorities that the sandbox's guest trusts in addition to its image's
// certificates.
func (su Setup) Trust() sandbox.Trust {
	if su.Link == nil {
		return sandbox.Trust{}
	}
	return sandbox.Trust{CA: su.Link.CA, Host: su.Link.HostCA, Bundle: su.Link.Bundle}
}

// Start starts a sandbox on the state of base.
func Start(ctx context.Context, h *host.Host, su Setup, base Base, progress func(string),
	clock *Stopwatch) (*sandbox.Sandbox, error) {
	req, err := Request(ctx, h, su, progress, clock)
	if err != nil {
		return nil, err
	}
	if s := claim(ctx, h, su, base, &req, clock); s != nil {
		return s, nil
	}
	req.Prepare = func(ctx context.Context, m *substrate.Machine) (func(), error) {
		return below(ctx, h, su, base, &req, m)
	}
	if su.Script != nil {
		if err := addScript(ctx, &req, su, base); err != nil {
			return nil, err
		}
	}
	s, err := h.Launcher.Start(ctx, req)
	if err != nil || base.State == nil {
		return s, err
	}
	if err := SetSession(ctx, s, su.Plan.Cwd, base.State.Env, req.Env); err != nil {
		err = s.CauseOf(err)
		_ = s.Close()
		return nil, err
	}
	clock.Lap("environment")
	return s, nil
}

// addScript adds the script of su to req, and its time limit.
func addScript(ctx context.Context, req *sandbox.Request, su Setup, base Base) error {
	calls, err := su.Script(ctx, req.Template.User)
	if err != nil {
		return err
	}
	if base.State != nil {
		first, err := sandbox.Call(wire.MethodStateSetSession,
			session(su.Plan.Cwd, base.State.Env, req.Env))
		if err != nil {
			return err
		}
		calls = slices.Concat([]substrate.Call{first}, calls)
	}
	req.Script, req.Limit = calls, su.Plan.Timeout
	req.Memory = turnstone.Bytes(su.Plan.Host.Limits.Memory)
	return nil
}

// Request returns the request for a sandbox's start. The first run on a machine spends its minutes
// here.
func Request(ctx context.Context, h *host.Host, su Setup, progress func(string),
	clock *Stopwatch) (sandbox.Request, error) {
	p := su.Plan
	tmpl := p.Template
	if tmpl == nil {
		var err error
		if tmpl, err = h.TemplatesFor(p.Anonymous).Ensure(ctx, p.Image, progress); err != nil {
			return sandbox.Request{}, err
		}
	}
	clock.Lap("template")
	return sandbox.Request{Template: tmpl, Image: p.Image, Shape: p.Shape,
		Env: su.Link.GiveWay(su.Env, tmpl.EnvList()), Owner: su.owner(tmpl), Hostname: p.Hostname,
		Determinism: p.Determinism,
		Network:     sandbox.Network{Options: su.Link.Options, Trust: su.Trust()},
		Driver:      p.Driver, Needs: p.Needs(), Kernel: h.Kernel(p.Host.Config),
		Slots: p.Host.Limits.Sandboxes, Progress: progress, Lap: clock.Lap}, nil
}

// owner returns to whom files belong that are brought into a sandbox: the user of its steps.
func (su *Setup) owner(t *turnstone.Template) string {
	if su.Build {
		return ""
	}
	return t.User
}

// below adds the images below the disk of a sandbox on base to m. The images remain until release
// is called.
func below(ctx context.Context, h *host.Host, su Setup, base Base, req *sandbox.Request,
	m *substrate.Machine) (release func(), err error) {
	tmpl := req.Template
	if base.State == nil && len(tmpl.Layers) == 0 && su.Home == nil {
		return func() {}, nil
	}
	cs := base.Context
	if cs == nil {
		if cs, err = h.Context(ctx); err != nil {
			return nil, err
		}
	}
	root, err := cs.RootTree(ctx, tmpl)
	if err != nil {
		return nil, err
	}
	if su.Home != nil {
		on := homes.Base{Root: root, Layers: tmpl.Layers, Tree: root}
		if n := len(tmpl.Layers); n > 0 {
			on.Tree = tmpl.Layers[n-1].Tree
		}
		if base.State != nil {
			on.Parent, on.Tree = base.Parent, base.State.Tree
		}
		m.Layers, release, err = su.Home.Images(ctx, on,
			homeDir(slices.Concat(tmpl.EnvList(), req.Env)))
		return release, err
	}
	m.Layers, release, err = cs.Images.Stack(ctx, root, cs.History(ctx, base.Parent, tmpl.Layers))
	return release, err
}

// homeDir returns the directory of a home in a sandbox with this environment: $HOME.
func homeDir(env []string) string {
	path := "/root" // the agent's default
	for _, kv := range env {
		v, ok := strings.CutPrefix(kv, "HOME=")
		if ok && strings.HasPrefix(v, "/") && strings.Trim(v, "/") != "" {
			path = v
		}
	}
	return path
}

// OpenHome opens the home that the plan of su requests, or, for a turn that repeats the turn of, the
// home that that turn began with; nil: none. The caller closes it.
func OpenHome(ctx context.Context, h *host.Host, su Setup, of turnstone.TurnID,
	progress func(string)) (*homes.Home, error) {
	all := homes.In(h.Repo)
	switch p := su.Plan; {
	case of != "":
		return all.Recorded(ctx, of)
	case p.Home != "":
		return all.Open(ctx, homes.Request{Name: p.Home, Turn: su.Turn, Timeout: p.Timeout,
			Room: p.Host.Room}, progress)
	}
	return nil, nil
}

// SetSession sets the directory of the shell of s to cwd and its environment to env, in which the
// variables of more take precedence.
func SetSession(ctx context.Context, s *sandbox.Sandbox, cwd string, env, more []string) error {
	return s.Client().StateSetSession(ctx, session(cwd, env, more))
}

// session returns the parameters of SetSession.
func session(cwd string, env, more []string) *wire.StateSetSessionParams {
	return &wire.StateSetSessionParams{Cwd: cwd, Env: mergeEnv(env, more)}
}

// mergeEnv returns base with the variables of more, which take precedence.
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
