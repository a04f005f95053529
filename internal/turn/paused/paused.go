// Package paused keeps the machine of a session's branch between turns, paused with its processes
// and its memory: a turn with lifetime: session resumes it, and ForkLive clones it.
package paused

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/host"
	"turnstone.dev/turnstone/internal/metered"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/provision"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/internal/turn/resume"
	"turnstone.dev/turnstone/sandboxes"
)

// lifetime is the maximum lifetime of a session's machine.
const lifetime = 24 * time.Hour

// A Turn is a turn with lifetime: session, which needs its session's machine.
type Turn struct {
	Setup   provision.Setup
	At      provision.Base // the turn's initial state
	Session turnstone.Session
	Start   string       // the initial state as the receipt describes it
	Tell    func(string) // receives progress messages
	Clock   *provision.Stopwatch
}

// Opened is a turn's sandbox.
type Opened struct {
	Sandbox *sandbox.Sandbox
	Machine *Machine        // nil: the turn has a sandbox of its own
	Shape   turnstone.Shape // shape of the machine
	Start   string          // description of the initial state
}

// Open resumes the machine of the turn's branch if the machine has the turn's initial state, and
// creates a machine otherwise. While another turn uses the machine, the turn gets a sandbox of its
// own. Start is also set with an error.
func Open(ctx context.Context, h *host.Host, t Turn) (Opened, error) {
	o := &opening{turn: &t, opened: Opened{Shape: t.Setup.Plan.Shape, Start: t.Start}}
	var err error
	o.opened.Sandbox, err = o.open(ctx, h)
	return o.opened, err
}

// An opening is a call of Open.
type opening struct {
	turn    *Turn
	machine *Machine
	opened  Opened
}

func (o *opening) open(ctx context.Context, h *host.Host) (*sandbox.Sandbox, error) {
	if _, err := h.Dir.MkdirAll("machines"); err != nil {
		return nil, err
	}
	t := o.turn
	m := &Machine{host: h, path: pathOf(h.Dir, t.Session.ID, t.Setup.Plan.Branch),
		store: sandboxes.NewStore(h.Dir.Root), sealed: t.Session.Domain != "",
		meter: metered.From(ctx)}
	var err error
	if m.lock, err = statedir.TryAcquire(m.path + ".lock"); err != nil {
		return nil, err
	}
	if m.lock == nil {
		o.opened.Start += ", because the session's machine is in use"
		return provision.Start(ctx, h, t.Setup, t.At, t.Tell, t.Clock)
	}
	o.machine = m
	s, err := o.resume(ctx)
	if err == nil && s == nil {
		s, err = o.restore(ctx)
	}
	if err == nil && s == nil {
		s, err = o.create(ctx)
	}
	if err != nil {
		m.lock.Release()
		return nil, err
	}
	o.opened.Machine = m
	return s, nil
}

// resume returns the paused machine, or nil if no machine fits.
func (o *opening) resume(ctx context.Context) (*sandbox.Sandbox, error) {
	h, t := o.machine, o.turn
	b, err := os.ReadFile(h.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil || json.Unmarshal(b, h) != nil || t.At.Parent == nil || h.Turn != t.At.Parent.ID {
		h.remove(ctx)
		return nil, ctx.Err()
	}
	if h.sealed {
		if h.Base, err = t.At.Context.TreeOf(ctx, h.Begun); err != nil {
			h.remove(ctx)
			return nil, ctx.Err()
		}
	}
	info, err := h.store.Get(h.Sandbox)
	if h.before = info.Used; err == nil && !matches(t.Setup.Plan, info, h.Rules) {
		o.opened.Start += ", because the session's machine does not fit the request"
		h.remove(ctx)
		return nil, ctx.Err()
	}
	// From here on the machine has more than the turn's state. If this process dies, the next
	// process must not take the machine for the turn's state.
	h.Turn = ""
	err = h.write()
	var s *sandbox.Sandbox
	if err == nil {
		s, err = h.resume(ctx)
	}
	if err != nil {
		t.Tell("the session's machine is gone: " + err.Error())
		h.remove(ctx)
		return nil, ctx.Err()
	}
	// the host's authorities may have changed since the machine was created
	if !t.Setup.Link.Opens() {
		err := s.Distrust(ctx, t.Setup.Trust())
		if err == nil {
			err = s.Trust(ctx, t.Setup.Trust())
		}
		if err != nil {
			_ = s.Close()
			h.remove(ctx)
			return nil, err
		}
	}
	if err := t.setSession(ctx, s); err != nil {
		err = s.CauseOf(err)
		_ = s.Close()
		h.remove(ctx)
		return nil, err
	}
	o.opened.Shape = s.Shape()
	o.opened.Start = fmt.Sprintf("the paused machine of turn %d", t.At.Parent.Number)
	t.Clock.Lap("resume")
	return s, nil
}

// setSession gives the shell of a session's machine the state's environment and this turn's
// additions.
func (t *Turn) setSession(ctx context.Context, s *sandbox.Sandbox) error {
	env := t.Setup.Link.GiveWay(t.Setup.Env, s.Template.EnvList())
	return provision.SetSession(ctx, s, t.Setup.Plan.Cwd, t.At.State.Env, env)
}

// matches reports whether a machine and its network are what p requests today. rules identifies the
// host's rules when the machine was created.
func matches(p *plan.Plan, m sandboxes.Info, rules turnstone.Digest) bool {
	if !p.Wants.Fit(m.Shape) || !p.RunsOn(m.Substrate, m.Isolation) {
		return false
	}
	return !m.Shape.Network || p.Shape.Network && p.Net.Host != "" && p.Net.Host == rules &&
		p.Net.Asked.Same(m.Network)
}

// restore restores the kept machine of the parent turn, or returns nil if there is no usable
// machine.
func (o *opening) restore(ctx context.Context) (*sandbox.Sandbox, error) {
	h, t, p := o.machine, o.turn, o.turn.Setup.Plan
	if t.At.Parent == nil {
		return nil, nil
	}
	rec, err := t.At.Context.Record(ctx, *t.At.Parent)
	if err != nil || rec.VM == nil || !p.RunsOn(rec.Substrate, rec.Isolation) ||
		!p.Wants.Fit(rec.Shape) || rec.Shape.Network && !p.Shape.Network {
		return nil, err
	}
	if len(rec.Parents) > 0 { // its disk contains the changes to this state
		h.Begun = rec.Parents[0]
		if h.Base, err = t.At.Context.TreeOf(ctx, h.Begun); err != nil {
			return nil, err
		}
	}
	info, err := resume.Into(ctx, h.host, p.Host, resume.Request{Ref: string(rec.ID)},
		sandboxes.Spec{TTL: lifetime, Network: &p.Net.Asked,
			Label: label(t.Session, p.Branch)}, t.Tell)
	if err != nil {
		t.Tell("the machine of the turn below cannot be used: " + err.Error())
		h.Base, h.Begun = turnstone.TreeRef{}, ""
		return nil, ctx.Err()
	}
	h.Sandbox, h.Turn = info.ID, ""
	if !p.RunsOn(info.Substrate, info.Isolation) { // the record may be imported
		h.remove(ctx)
		return nil, ctx.Err()
	}
	s, err := h.attach(ctx, t)
	if err != nil {
		return nil, err
	}
	o.opened.Shape = rec.Shape
	o.opened.Start = fmt.Sprintf("the kept machine of turn %d", rec.Number)
	t.Clock.Lap("resume")
	return s, nil
}

// attach connects to a machine that was created for the session, and gives its shell the state's
// environment and this turn's additions.
func (h *Machine) attach(ctx context.Context, t *Turn) (*sandbox.Sandbox, error) {
	h.Rules = h.host.StillRules(t.Setup.Plan.Net.Host)
	err := h.write() // first, so that the machine can be found again
	var s *sandbox.Sandbox
	if err == nil {
		s, err = h.resume(ctx)
	}
	if err == nil && t.At.State != nil {
		err = t.setSession(ctx, s)
	}
	if err != nil {
		h.remove(ctx)
		return nil, err
	}
	return s, nil
}

// create creates a machine for the session, on the turn's initial state.
func (o *opening) create(ctx context.Context) (*sandbox.Sandbox, error) {
	h, t, p := o.machine, o.turn, o.turn.Setup.Plan
	spec := sandboxes.Spec{Image: p.Image, Env: t.Setup.Env, Shape: p.Shape, Network: &p.Net.Asked,
		Substrate: p.Driver, TTL: lifetime, Live: true, Label: label(t.Session, p.Branch),
		Sealed: h.sealed}
	if t.At.Parent != nil {
		spec.On = string(t.At.Parent.ID)
		h.Base, h.Begun = t.At.State.Tree, t.At.Parent.ID
	}
	if p.Anonymous { // the machine's holder would request the image with the user's credentials
		if _, err := h.host.TemplatesFor(true).Ensure(ctx, p.Image, t.Tell); err != nil {
			return nil, err
		}
	}
	// the best substrate with this isolation, which may not be the best substrate
	if p.Isolation != "" {
		req, err := provision.Request(ctx, h.host, t.Setup, t.Tell, provision.NewStopwatch())
		if err != nil {
			return nil, err
		}
		src, err := h.host.Launcher.Find(ctx, req)
		if err != nil {
			return nil, err
		}
		spec.Substrate = src.Driver.Name()
	}
	var err error
	if h.store.Holder, err = h.host.Holder(ctx); err != nil {
		return nil, err
	}
	info, err := h.store.Create(ctx, spec, t.Tell)
	if err != nil {
		return nil, err
	}
	h.Sandbox, h.Turn = info.ID, ""
	if !p.RunsOn(info.Substrate, info.Isolation) { // a holder receives only the names of substrates
		h.remove(ctx)
		return nil, turnstone.Errorf("executor.held", turnstone.KindInternal,
			"the session's machine",
			"it runs on %s, %s, which the turn does not accept", info.Substrate,
			info.Isolation).
			WithHint("name a --substrate")
	}
	s, err := h.attach(ctx, t)
	if err != nil {
		return nil, err
	}
	t.Clock.Lap("create")
	return s, nil
}

// Settle ends a turn's use of the machine. If stays is set, the machine remains, and the branch's
// next turn starts from turn. tell receives the reason if the machine does not remain.
func (h *Machine) Settle(ctx context.Context, turn turnstone.TurnID, stays bool,
	tell func(string)) {
	defer h.lock.Release()
	if !stays || h.spent || h.Sandbox == "" {
		h.remove(ctx)
		return
	}
	h.Turn = turn
	if err := h.write(); err != nil {
		tell("the session's machine does not stay: " + err.Error())
		h.remove(ctx)
		return
	}
	h.control(nil)
}

// StandsOn reports whether the machine of a session's branch has the state of turn.
func StandsOn(h *host.Host, s turnstone.SessionID, branch string, turn turnstone.TurnID) bool {
	b, err := os.ReadFile(pathOf(h.Dir, s, branch))
	var m Machine
	return err == nil && json.Unmarshal(b, &m) == nil && m.Turn == turn
}

// label returns the label of the machine of a session's branch.
func label(s turnstone.Session, branch string) string {
	return "session " + s.Label() + "@" + branch
}
