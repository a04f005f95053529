package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/document"
	"turnstone.dev/turnstone/internal/driver"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/plan"
	"turnstone.dev/turnstone/internal/sandbox"
	"turnstone.dev/turnstone/internal/sandbox/collect"
	"turnstone.dev/turnstone/internal/statedir"
	"turnstone.dev/turnstone/sandboxes"
	"turnstone.dev/turnstone/substrate"
	"turnstone.dev/turnstone/wire"
)

// pausedLifetime is how long the machine of a session lives at most.
const pausedLifetime = 24 * time.Hour

// A pausedMachine is the machine of a session's branch, which a holder keeps between turns:
// paused, with its processes and its memory. It is written down in a file.
type pausedMachine struct {
	Sandbox turnstone.SandboxID `json:"sandbox"`
	Turn    turnstone.TurnID    `json:"turn"` // whose state it has; empty before its first turn ended
	Base    turnstone.TreeRef   `json:"base"` // that its disk's changes are on
	// Rules is what the host said of networks when its own was made; empty: not known.
	Rules turnstone.Digest `json:"rules,omitempty"`

	x     *Runner
	path  string
	lock  *statedir.Lock // one turn at a time
	spent bool           // it does not stay: it was ended to take the turn's files
	store *sandboxes.Store

	mu  sync.Mutex // for ctl: who guards a turn ends its machine from beside it
	ctl *sandboxes.Control
}

// openPaused goes on in the machine of the turn's branch, where it stands on the
// state that the turn begins with, or makes it.
func (r *run) openPaused(ctx context.Context, su setup) (*Sandbox, error) {
	if _, err := r.x.home.MkdirAll("machines"); err != nil {
		return nil, err
	}
	h := &pausedMachine{x: r.x, path: r.x.pausedPath(r.at.session.ID, r.plan.Branch), store: sandboxes.NewStore(r.x.home)}
	var err error
	if h.lock, err = statedir.TryAcquire(h.path + ".lock"); err != nil {
		return nil, err
	}
	if h.lock == nil {
		r.info.Start += ", for the session's machine is in use"
		return r.x.openAt(ctx, su, r.at, r.obs.Preparing, r.clock)
	}
	s, err := r.resumePaused(ctx, h, su)
	if err == nil && s == nil {
		s, err = r.restoreKept(ctx, h, su)
	}
	if err == nil && s == nil {
		s, err = r.createPaused(ctx, h, su)
	}
	if err != nil {
		h.lock.Release()
		return nil, err
	}
	r.paused, r.info.Lifetime = h, turnstone.LifetimeSession
	return s, nil
}

// resumePaused returns the paused machine, or nil when there is none that fits.
func (r *run) resumePaused(ctx context.Context, h *pausedMachine, su setup) (*Sandbox, error) {
	b, err := os.ReadFile(h.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil || json.Unmarshal(b, h) != nil || r.at.parent == nil || h.Turn != r.at.parent.ID {
		h.remove(ctx)
		return nil, ctx.Err()
	}
	if info, err := h.store.Get(h.Sandbox); err == nil && !matchesPaused(r.plan, info, h.Rules) {
		r.info.Start += ", for the session's machine is not as asked for"
		h.remove(ctx)
		return nil, ctx.Err()
	}
	// From here on the machine has more than the turn's state. Should this process
	// die, the next one must not take it for what it was.
	h.Turn = ""
	err = h.write()
	var s *Sandbox
	if err == nil {
		s, err = h.resume(ctx)
	}
	if err != nil {
		r.obs.Preparing("the session's machine is gone: " + err.Error())
		h.remove(ctx)
		return nil, ctx.Err()
	}
	if !su.link.Opens() { // the host's authorities may be others than when it was made
		err := s.Distrust(ctx, trusts(su.link))
		if err == nil {
			err = s.Trust(ctx, trusts(su.link))
		}
		if err != nil {
			_ = s.Close()
			h.remove(ctx)
			return nil, err
		}
	}
	if err := r.setSession(ctx, s, su); err != nil {
		err = s.CauseOf(err)
		_ = s.Close()
		h.remove(ctx)
		return nil, err
	}
	r.shape = s.Shape()
	r.info.Start = fmt.Sprintf("the paused machine of turn %d", r.at.parent.Number)
	r.clock.lap("resume")
	return s, nil
}

// setSession gives the shell of a machine that stays the state's environment, with what this turn
// adds.
func (r *run) setSession(ctx context.Context, s *Sandbox, su setup) error {
	env := su.link.GiveWay(su.env, s.Template.EnvList())
	return s.Client().StateSetSession(ctx, &wire.StateSetSessionParams{Cwd: r.plan.Cwd, Env: mergeEnv(r.at.state.Env, env)})
}

// matchesPaused tells whether a machine is what p asks for, and its network what p would get today:
// rules is what the host said when it was made.
func matchesPaused(p *plan.Plan, m sandboxes.Info, rules turnstone.Digest) bool {
	if !p.Wants.Fit(m.Shape) || !runsOn(p, m.Substrate, m.Isolation) {
		return false
	}
	return !m.Shape.Network || p.Shape.Network && p.Net.Host != "" && p.Net.Host == rules && p.Net.Asked.Same(m.Network)
}

// runsOn tells whether a machine of a substrate, with its word on how it isolates, is what p
// asks for.
func runsOn(p *plan.Plan, name, isolation string) bool {
	if p.Driver != "" && p.Driver != driver.Auto && p.Driver != name {
		return false
	}
	return p.Isolation != document.IsolationMicroVM || strings.HasPrefix(isolation, "microvm ") && !strings.Contains(isolation, substrate.TestKernel)
}

// restoreKept restores the machine that the turn below was kept with, or returns nil when
// there is none that can be used.
func (r *run) restoreKept(ctx context.Context, h *pausedMachine, su setup) (*Sandbox, error) {
	if r.at.parent == nil {
		return nil, nil
	}
	rec, err := r.at.cs.Record(ctx, *r.at.parent)
	if err != nil || rec.VM == nil || !runsOn(r.plan, rec.Substrate, rec.Isolation) || !r.plan.Wants.Fit(rec.Shape) || rec.Shape.Network && !r.plan.Shape.Network {
		return nil, err
	}
	if len(rec.Parents) > 0 { // its disk lies on what it began with
		if h.Base, err = r.at.cs.TreeOf(ctx, rec.Parents[0]); err != nil {
			return nil, err
		}
	}
	info, err := r.x.resume(ctx, r.plan.Host, ResumeRequest{Ref: string(rec.ID)}, sandboxes.Spec{TTL: pausedLifetime, Network: &r.plan.Net.Asked, Label: pausedLabel(r.at.session, r.plan.Branch)}, r.obs.Preparing)
	if err != nil {
		r.obs.Preparing("the machine of the turn below cannot be used: " + err.Error())
		h.Base = turnstone.TreeRef{}
		return nil, ctx.Err()
	}
	h.Sandbox, h.Turn = info.ID, ""
	if !runsOn(r.plan, info.Substrate, info.Isolation) { // the record may be imported
		h.remove(ctx)
		h.Base = turnstone.TreeRef{}
		return nil, ctx.Err()
	}
	s, err := h.attach(ctx, r, su)
	if err != nil {
		return nil, err
	}
	r.shape = rec.Shape
	r.info.Start = fmt.Sprintf("the kept machine of turn %d", rec.Number)
	r.clock.lap("resume")
	return s, nil
}

// attach connects to a machine that was made for the session, and gives its shell
// the state's environment with what this turn adds.
func (h *pausedMachine) attach(ctx context.Context, r *run, su setup) (*Sandbox, error) {
	h.Rules = r.x.stillHostRules(r.plan.Net.Host)
	err := h.write() // before anything else: it has to be found again
	var s *Sandbox
	if err == nil {
		s, err = h.resume(ctx)
	}
	if err == nil && r.at.state != nil {
		err = r.setSession(ctx, s, su)
	}
	if err != nil {
		h.remove(ctx)
		return nil, err
	}
	return s, nil
}

// createPaused makes a machine that stays, on the state that the turn begins with.
func (r *run) createPaused(ctx context.Context, h *pausedMachine, su setup) (*Sandbox, error) {
	spec := sandboxes.Spec{Image: r.plan.Image, Env: su.env, Shape: r.plan.Shape, Network: &r.plan.Net.Asked, Substrate: r.plan.Driver, TTL: pausedLifetime, Live: true, Label: pausedLabel(r.at.session, r.plan.Branch)}
	if r.at.parent != nil {
		spec.On = string(r.at.parent.ID)
		h.Base = r.at.state.Tree
	}
	if r.plan.Anonymous { // its holder would ask for the image with the user's credentials
		if _, err := r.x.templatesFor(true).Ensure(ctx, r.plan.Image, r.obs.Preparing); err != nil {
			return nil, err
		}
	}
	if r.plan.Isolation != "" { // the best that serves it, and not the best there is
		req, err := r.x.request(ctx, su, r.obs.Preparing, newStopwatch())
		if err != nil {
			return nil, err
		}
		src, err := r.x.launcher.Find(ctx, req)
		if err != nil {
			return nil, err
		}
		spec.Substrate = src.Driver.Name()
	}
	var err error
	if h.store.Holder, err = r.x.holder(ctx); err != nil {
		return nil, err
	}
	info, err := h.store.Create(ctx, spec, r.obs.Preparing)
	if err != nil {
		return nil, err
	}
	h.Sandbox, h.Turn = info.ID, ""
	if !runsOn(r.plan, info.Substrate, info.Isolation) { // a holder knows of names only
		h.remove(ctx)
		return nil, turnstone.Errorf("executor.held", turnstone.KindInternal, "the session's machine",
			"it runs on %s, %s, which is not what the turn asks for", info.Substrate, info.Isolation).
			WithHint("name a --substrate")
	}
	s, err := h.attach(ctx, r, su)
	if err != nil {
		return nil, err
	}
	r.clock.lap("create")
	return s, nil
}

func (h *pausedMachine) write() error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return filestamp.WriteFile(h.path, b, 0o600)
}

// remove ends the machine and forgets it.
func (h *pausedMachine) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	h.control(nil)
	if h.Sandbox != "" {
		_ = h.store.Remove(ctx, h.Sandbox)
	}
	_ = os.Remove(h.path)
	h.Sandbox, h.Turn, h.Base, h.Rules = "", "", turnstone.TreeRef{}, ""
}

// control makes c the connection to the machine's holder, and ends the one before.
func (h *pausedMachine) control(c *sandboxes.Control) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctl != nil {
		_ = h.ctl.Close()
	}
	h.ctl = c
}

// resume lets the machine go on, if it stood still, and connects to it.
func (h *pausedMachine) resume(ctx context.Context) (*Sandbox, error) {
	info, err := h.store.Get(h.Sandbox)
	if err != nil {
		return nil, err
	}
	if info.State.Final() {
		return nil, turnstone.Errorf("executor.held", turnstone.KindDead, "sandbox "+string(h.Sandbox),
			"is %s", info.State)
	}
	ctl, err := h.store.Control(ctx, h.Sandbox)
	if err != nil {
		return nil, err
	}
	h.control(ctl)
	if err := ctl.Resume(ctx); err != nil {
		return nil, err
	}
	conn, err := h.store.Dial(ctx, h.Sandbox)
	if err != nil {
		return nil, err
	}
	tmpl, err := h.x.Templates().Ensure(ctx, info.Image, func(string) {})
	if err != nil && info.Root != "" { // it needs no more than its image
		tmpl, err = h.x.templateOn(ctx, info.Image, info.Root)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if info.Template != "" && info.Template != tmpl.Digest { // it was built anew since
		was := *tmpl
		was.Digest, tmpl = info.Template, &was
	}
	m, client := &pausedSandbox{paused: h, id: h.Sandbox, done: make(chan struct{})}, wire.NewClient(conn)
	go func() {
		<-client.Done()
		m.end()
	}()
	about := sandbox.About{Substrate: info.Substrate, Isolation: info.Isolation, Shape: info.Shape}
	return h.x.launcher.Attach(tmpl, info.Image, m, about, client), nil
}

// A pausedSandbox is a machine that belongs to a holder, as a sandbox.Machine.
type pausedSandbox struct {
	paused *pausedMachine
	id     turnstone.SandboxID
	once   sync.Once
	done   chan struct{}

	mu     sync.Mutex
	closed bool
}

func (m *pausedSandbox) end() { m.once.Do(func() { close(m.done) }) }

func (m *pausedSandbox) ID() turnstone.SandboxID { return m.id }
func (m *pausedSandbox) Done() <-chan struct{}   { return m.done }

// Err asks the holder's records why the machine ended.
func (m *pausedSandbox) Err() error {
	select {
	case <-m.done:
	default:
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if info, err := m.paused.store.Get(m.id); err == nil && info.Reason != "" {
		return turnstone.NewError("executor.held", turnstone.KindDead, string(info.ID),
			errors.New(info.Reason))
	}
	return turnstone.Errorf("executor.held", turnstone.KindDead, string(m.id),
		"its connection ended")
}

// Close ends the machine: nobody closes one that is to stay.
func (m *pausedSandbox) Close() error {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	if !closed {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m.paused.control(nil)
		_ = m.paused.store.Stop(ctx, m.id)
	}
	m.end()
	return nil
}

// TakeNetwork is Sandbox.TakeNetwork by way of the machine's holder.
func (m *pausedSandbox) TakeNetwork(ctx context.Context) (turnstone.NetworkFacts, bool) {
	m.paused.mu.Lock()
	ctl := m.paused.ctl
	m.paused.mu.Unlock()
	select {
	case <-m.done:
		return turnstone.NetworkFacts{}, false
	default:
	}
	if ctl == nil {
		return turnstone.NetworkFacts{}, false
	}
	f, err := ctl.Network(ctx)
	return f, err == nil
}

// pause pauses the machine and returns what it has changed. The turn of one that does not stand
// still, as restless says, goes without it: see giveUp.
func (h *pausedMachine) pause(ctx context.Context, s *Sandbox, b collect.Bounds) (c *collect.Changes, restless, err error) {
	ctx, cancel := context.WithTimeout(ctx, collect.TimeLimit)
	defer cancel()
	defer s.Guard(ctx)()
	h.mu.Lock()
	ctl := h.ctl
	h.mu.Unlock()
	res, err := s.Client().StateGetSession(ctx)
	if err == nil && ctl == nil {
		err = turnstone.Errorf("executor.held", turnstone.KindDead, string(s.ID()), "was ended")
	}
	if err != nil {
		return nil, nil, s.CauseOf(err)
	}
	st, restless := ctl.Pause(ctx)
	if restless != nil {
		c, err = h.giveUp(ctx, b)
		return c, restless, err
	}
	d, err := ctl.Disk(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err = collect.OfPaused(ctx, s, d, st.Upper, res.Cwd, res.Env, b)
	return c, nil, err
}

// giveUp takes what the turn leaves out of a machine that does not stand still, and ends the machine. What has died leaves nothing.
func (h *pausedMachine) giveUp(ctx context.Context, b collect.Bounds) (*collect.Changes, error) {
	h.spent = true
	s, err := h.resume(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	h.mu.Lock()
	ctl := h.ctl
	h.mu.Unlock()
	return collect.Take(ctx, s, ctl.Disk, b)
}

// settlePaused ends the turn's use of the session's machine: it stays when the turn is
// what the next one of its branch begins on. When the turn had a sandbox of its own, the
// machine that stands on its parent is of no use any more, and ends.
func (r *run) settlePaused(ctx context.Context, kept bool) {
	h := r.paused
	if h == nil {
		if kept && !r.diverged && r.skipsPaused() {
			_ = r.x.endPaused(ctx, r.at.session.ID, r.plan.Branch) // gc finds what this leaves
		}
		return
	}
	defer h.lock.Release()
	if !kept || r.diverged || h.spent || h.Sandbox == "" {
		h.remove(ctx)
		return
	}
	h.Turn = r.info.ID
	if err := h.write(); err != nil {
		r.obs.Preparing("the session's machine does not stay: " + err.Error())
		h.remove(ctx)
		return
	}
	h.control(nil)
}

// skipsPaused tells whether a machine of the session stands where the turn begins, which
// has a sandbox of its own.
func (r *run) skipsPaused() bool {
	if r.at.replay || r.at.parent == nil {
		return false
	}
	b, err := os.ReadFile(r.x.pausedPath(r.at.session.ID, r.plan.Branch))
	var h pausedMachine
	return err == nil && json.Unmarshal(b, &h) == nil && h.Turn == r.at.parent.ID
}

// pausedLabel says whose the machine of a session's branch is.
func pausedLabel(s turnstone.Session, branch string) string {
	return "session " + s.Label() + "@" + branch
}
